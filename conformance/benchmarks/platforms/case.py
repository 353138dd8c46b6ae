"""One candidate on one golden in one format: the digest of its outputs, and the verdict on it.

A lane's process runs the cases of an order, a JSON object on its standard input with the lane's name, the cases, and the verdicts
of earlier lanes. It prints a line of JSON on the machine, then one for each case.
"""

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

import torch

from conformance import Checkpoint, Golden, Result, check, load_golden
from conformance.benchmarks.platforms.lanes import LANES, PLAIN, Lane
from conformance.candidates.registry import Runner, as_implementation, load_implementation, name_of
from conformance.candidates.stream import pairs
from conformance.checks.contract import prepared, require_support
from conformance.faults.precision import TF32_BITS
from conformance.judge.evidence import Verdict
from conformance.numerics.machine import this_machine
from conformance.results.termination import Termination, call_candidate, run_guarded

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
        digest: digest of all outputs; empty if there were none.
        same_as: the lane that yielded the same bits before and whose verdict this is; empty if the case was judged here.
        reduced: whether the case fails and each origin is recognized as reduced precision.
        seconds: duration of the case.
    """

    candidate: str
    golden: str
    dtype: str
    outcome: str
    reason: str = ""
    digest: str = ""
    same_as: str = ""
    reduced: bool = False
    seconds: float = 0.0

    @property
    def case(self) -> str:
        """The candidate, golden and format as text."""
        return f"{self.candidate} on {self.golden} in {self.dtype}"


class _Once:
    """A prepared candidate: judging uses the runner that was digested, and compiles only once."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name, self.runner = name, runner

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
        return self.runner


def run(candidate: Any, golden: str, dtype: str, earlier: Mapping[str, Ran]) -> Ran:
    """Run a case, and judge it unless the same bits have been judged before.

    Args:
        candidate: a registered name, or an object with `prepare`.
        golden: name of a golden.
        dtype: name of a format.
        earlier: verdicts on the same case in other lanes, by digest.
    """
    start = time.perf_counter()
    found = _judged(candidate, load_golden(golden), dtype, earlier)
    if "torch._dynamo" in sys.modules:  # After eight compilations, a function silently runs eagerly.
        torch.compiler.reset()
    return replace(found, seconds=time.perf_counter() - start)


def _judged(candidate: Any, golden: Golden, dtype: str, earlier: Mapping[str, Ran]) -> Ran:
    name, found = name_of(candidate), dict[str, Any]()

    def yields() -> Termination:
        opened = load_implementation(candidate) if isinstance(candidate, str) else as_implementation(candidate)
        require_support(opened, golden, "cpu", dtype)
        found["runner"] = prepared(opened, golden.checkpoint, "cpu", dtype)
        found["digest"] = digest(found["runner"], golden)
        return Termination("pass")

    ending = run_guarded(yields)
    if ending.outcome != "pass":
        return Ran(name, golden.name, dtype, ending.outcome, ending.reason)
    if found["digest"] in earlier:
        return earlier[found["digest"]]
    result = check(_Once(name, found["runner"]), golden, dtype=dtype)
    return Ran(name, golden.name, dtype, result.outcome, result.reason, found["digest"], reduced=_is_reduced(result))


def digest(runner: Runner, golden: Golden) -> str:
    """Return the SHA-256 of the names, formats, shapes and bytes that a runner yields for all batches of a golden.

    It includes the bounds that this machine adds to the table, since a verdict also depends on them.
    """
    hashed = sha256(repr(sorted(this_machine("cpu").exceeding.items())).encode())
    for batch in golden.batches.values():
        output = call_candidate(lambda batch=batch: list(pairs(runner(batch.on("cpu")), {})))  # type: ignore[misc]
        for name, value in output:
            array = torch.as_tensor(value).detach().contiguous()
            hashed.update(f"{name} {array.dtype} {tuple(array.shape)} ".encode())
            hashed.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


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
    significant_bits = [float(found[1]) for sentence in sentences if (found := NOISE.search(sentence))]
    return any(bits <= TF32_BITS for bits in significant_bits) or any(NARROWER.match(sentence) for sentence in sentences)


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
    for (candidate, golden, dtype), judged in order["cases"]:
        earlier = {ran["digest"]: Ran(**ran) for ran in judged}
        print(json.dumps(asdict(run(candidate, golden, dtype, earlier))), file=out, flush=True)


if __name__ == "__main__":
    main()
