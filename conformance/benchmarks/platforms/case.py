"""One candidate on one golden in one format: the digest of all that it yields, and the verdict on it."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch

from conformance import Checkpoint, Golden, Result, check, load_golden
from conformance.candidates.registry import Runner, as_implementation, load, name_of
from conformance.candidates.stream import pairs
from conformance.checks.session import prepared, require_support
from conformance.faults.precision import TF32_BITS
from conformance.judge.evidence import Verdict
from conformance.numerics.machine import this_machine
from conformance.results.termination import Termination, call_candidate, run_guarded

REDUCED = ("precision-bfloat16", "precision-float16", "precision-tf32")  # how the names of the faults begin that a setting makes
NOISE = re.compile(r"as numbers of ([\d.]+) significant bits would leave; nothing beyond noise remains$")
"""What the anatomy says where many hidden products are reduced at once: noise, and no structure."""
NARROWER = re.compile(r"^as much as computing in b?float16 would leave")
"""What it says of a residual with structure that is as large as a half format's rounding."""


@dataclass(frozen=True)
class Ran:
    """What came of a case in a lane.

    Attributes:
        candidate, golden, dtype: the case.
        outcome, reason: as in a result.
        digest: of all that it yielded; empty where it yielded nothing.
        same_as: the lane in which it yielded the same bits before, whose verdict this is; empty where it was judged here.
        reduced: whether it fails, and each origin is recognised as reduced precision.
        seconds: that it took.
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
        """Candidate, golden and format."""
        return f"{self.candidate} on {self.golden} in {self.dtype}"


class _Once:
    """A candidate that has been prepared: what was digested is what is judged, and what is compiled is compiled once."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name, self.runner = name, runner

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
        return self.runner


def run(candidate: Any, golden: str, dtype: str, earlier: Mapping[str, Ran]) -> Ran:
    """Run a case, and judge it unless that was done.

    Args:
        candidate: a registered name, or an object with `prepare`.
        golden: a name.
        dtype: a format's.
        earlier: what was judged of the same case in other lanes, by digest.
    """
    start = time.perf_counter()
    found = _judged(candidate, load_golden(golden), dtype, earlier)
    if "torch._dynamo" in sys.modules:  # past eight compilations of one function it would run eagerly, without a word
        torch.compiler.reset()
    return replace(found, seconds=time.perf_counter() - start)


def _judged(candidate: Any, golden: Golden, dtype: str, earlier: Mapping[str, Ran]) -> Ran:
    name, found = name_of(candidate), dict[str, Any]()

    def yields() -> Termination:
        opened = load(candidate) if isinstance(candidate, str) else as_implementation(candidate)
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
    """SHA-256 of names, formats, shapes and bytes of what a runner yields, on all batches of a golden.

    The bounds that this machine adds to the table's are in it: a verdict depends on them too.
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
    """Whether it is named as reduced precision; or without a name, its residual is noise that no format above TF32's leaves.

    Or it is as large as a half format's rounding, without a name.
    """
    named = [fault.name for fault in origin.local.named] if origin.local else []
    significant_bits = [float(found[1]) for sentence in origin.anatomy if (found := NOISE.search(sentence))]
    if named:
        return all(name.startswith(REDUCED) for name in named)
    return any(bits <= TF32_BITS for bits in significant_bits) or any(NARROWER.match(sentence) for sentence in origin.anatomy)
