"""A lane's process: it applies settings that have no environment variable, runs the cases, and writes one line of JSON for each.

    python -m conformance.benchmarks.platforms.child FILE

It reads an order, one JSON object, from standard input: the lane's name, the cases, and the verdicts of other lanes.
"""

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from conformance.benchmarks.platforms.case import Ran, run
from conformance.benchmarks.platforms.lanes import LANES, Lane
from conformance.numerics.machine import this_machine


def main() -> None:
    """Carry out the order; the first line written describes the machine, and the other lines are cases."""
    order, out = json.load(sys.stdin), Path(sys.argv[1])
    lane = LANES[order["lane"]]
    torch.set_num_threads(lane.threads)
    torch.set_flush_denormal(lane.flush)
    warnings.simplefilter("ignore")
    with out.open("w", encoding="utf-8") as file:
        torch.set_float32_matmul_precision(lane.precision)
        machine = this_machine("cpu")
        _write(file, {"capability": machine.instruction_set, "reduces": reduces(lane), "notes": machine.notes})
        for (candidate, golden, dtype), judged in order["cases"]:
            earlier = {found["digest"]: Ran(**found) for found in judged}
            _write(file, asdict(run(candidate, golden, dtype, earlier)))


def reduces(lane: Lane) -> bool:
    """Return whether a float32 product differs bitwise between the lane's precision and `highest`."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    torch.set_float32_matmul_precision("highest")
    exact = a @ b
    torch.set_float32_matmul_precision(lane.precision)
    return not torch.equal(exact, a @ b)


def _write(file: Any, record: object) -> None:
    file.write(json.dumps(record) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
