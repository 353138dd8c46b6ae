"""`python -m conformance.benchmarks.peers`."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import torch

from conformance.benchmarks.peers.measure import Row, named, row
from conformance.benchmarks.peers.peer import PEERS, Peer
from conformance.benchmarks.peers.table import PAGE, RESULTS, Table, page, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every installed tool and print the page; `--write` saves it."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.peers", description="other tools, asked the same")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} and {PAGE.name}")
    parser.add_argument("--tool", choices=[peer.name for peer in PEERS], help="measure this one, and print its row as JSON")
    asked = parser.parse_args(arguments)
    if asked.tool:
        print(msgspec.json.encode(row(named(asked.tool), asked.repeats)).decode())
        return
    processor = f"{os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}"
    table = Table.of([_measured(peer, asked.repeats) for peer in PEERS], processor, torch.get_num_threads())
    print("\n".join(page(table)))
    if asked.write:
        write(table)


def _measured(peer: Peer, repeats: int) -> Row:
    """Return a tool's row, measured in a fresh interpreter, since TorchLens does not run in a `multiprocessing` child."""
    command = [sys.executable, "-m", __package__, "--tool", peer.name, "--repeats", str(repeats)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    print(f"{peer.name}: measured", file=sys.stderr, flush=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Row)


if __name__ == "__main__":
    main()
