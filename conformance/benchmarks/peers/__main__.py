"""`python -m conformance.benchmarks.peers`."""

import argparse
import os
import sys
from collections.abc import Sequence

import torch

from conformance.benchmarks.peers.measure import Row, row
from conformance.benchmarks.peers.peer import PEERS
from conformance.benchmarks.peers.table import PAGE, RESULTS, Table, page, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every tool that is installed, print the page, and with `--write` commit it."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.peers", description="other tools, asked the same")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} and {PAGE.name}")
    asked = parser.parse_args(arguments)
    processor = f"{os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}"
    rows: list[Row] = []
    for peer in PEERS:
        rows.append(row(peer, asked.repeats))
        print(f"{peer.name}: measured", file=sys.stderr, flush=True)
        if asked.write:  # a run that is cut short leaves the rows that it has
            write(Table.of(rows, processor, torch.get_num_threads()))
    print("\n".join(page(Table.of(rows, processor, torch.get_num_threads()))))


if __name__ == "__main__":
    main()
