"""One candidate on one golden in one format, judged in the process of a lane.

The process runs the cases of an order, a JSON object on its standard input with the lane's name and the cases. It prints a line of
JSON on the machine, then one for each case.
"""

import json
import os
import re
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

from conformance import Result, check
from conformance.benchmarks.platforms.lanes import LANES, PLAIN, Lane
from conformance.candidates.registry import name_of
from conformance.faults.precision import TF32_BITS
from conformance.judge.evidence import Verdict
from conformance.numerics.machine import this_machine

# Prefixes of the names of the faults that a setting of reduced precision causes.
REDUCED = ("precision-bfloat16", "precision-float16", "precision-tf32")
NOISE = re.compile(r"as large as rounding to ([\d.]+) significant bits would leave$")
"""The sentence on a residual if many unobserved products have reduced precision at once: an error without a pattern."""
NARROWER = re.compile(r"^as much as computing in b?float16 would leave")
"""The sentence on a residual with structure that is as large as the rounding of a half-precision format."""


@dataclass(frozen=True)
class Ran:
    """The result of a case in a lane.

    Attributes:
        candidate, golden, dtype: the case.
        outcome, reason: as in `Result`.
        reduced: whether the case fails and each origin is recognized as reduced precision.
        seconds: duration of the case.
    """

    candidate: str
    golden: str
    dtype: str
    outcome: str
    reason: str = ""
    reduced: bool = False
    seconds: float = 0.0

    @property
    def case(self) -> str:
        """The candidate, golden and format as text."""
        return f"{self.candidate} on {self.golden} in {self.dtype}"


def run(candidate: Any, golden: str, dtype: str) -> Ran:
    """Judge a case; the candidate is a registered name, or an object with `prepare`."""
    start = time.perf_counter()
    result = check(candidate, golden, dtype=dtype)
    if "torch._dynamo" in sys.modules:  # After eight compilations, a function silently runs eagerly.
        torch.compiler.reset()
    reduced, seconds = _is_reduced(result), time.perf_counter() - start
    return Ran(name_of(candidate), golden, dtype, result.outcome, result.reason, reduced, seconds)


def _is_reduced(result: Result) -> bool:
    return bool(result.origins) and all(_is_of_fewer_bits(verdict) for verdict in result.origins)


def _is_of_fewer_bits(origin: Verdict) -> bool:
    """Return whether an origin is recognized as reduced precision.

    It either is named as reduced precision, or has no name and a residual that is noise of at most TF32's precision or as large as
    the rounding of a half-precision format.
    """
    named = [fault.name for fault in origin.local.named] if origin.local else []
    if named:
        return all(name.startswith(REDUCED) for name in named)
    sentences = origin.residual_description
    bits = [float(noise[1]) for sentence in sentences if (noise := NOISE.search(sentence))]
    return any(count <= TF32_BITS for count in bits) or any(NARROWER.match(sentence) for sentence in sentences)


def reduces(lane: Lane) -> bool:
    """Return whether a float32 product differs bitwise between the lane's precision and `highest`; the lane's remains set."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    torch.set_float32_matmul_precision(PLAIN)
    exact = a @ b
    torch.set_float32_matmul_precision(lane.precision)
    return not torch.equal(exact, a @ b)


def main() -> None:
    """Apply the settings that have no environment variable, and run the cases."""
    order, out = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What a candidate prints is no record.
    lane = LANES[order["lane"]]
    torch.set_num_threads(lane.threads)
    torch.set_flush_denormal(lane.flush)
    warnings.simplefilter("ignore")
    reduced, machine = reduces(lane), this_machine("cpu")
    print(json.dumps({"capability": machine.instruction_set, "reduces": reduced, "notes": machine.notes}), file=out, flush=True)
    for case in order["cases"]:
        print(json.dumps(asdict(run(*case))), file=out, flush=True)


if __name__ == "__main__":
    main()
