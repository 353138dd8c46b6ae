"""Running candidates on goldens: prepare, run, judge, and say what came of it. Effects end here; the judge is pure."""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.checkpoint import Checkpoint, rounded_weights
from conformance.errors import CandidateError, ConformanceError, DependencyMissingError
from conformance.goldens.golden import Golden, load_golden
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.settle import settle
from conformance.numerics.formats import format_named
from conformance.oracle import Network
from conformance.registry import Implementation, load


@dataclass(frozen=True)
class Pair:
    """One thing to run: a candidate on a golden, on a device, in a dtype."""

    implementation: str
    golden: str
    device: str = "cpu"
    dtype: str = "float32"

    def __str__(self) -> str:
        """For progress and reports."""
        return f"{self.implementation} on {self.golden}, {self.device}, {self.dtype}"


@dataclass(frozen=True)
class Result:
    """What came of a pair.

    Attributes:
        outcome: `pass`, `fail`, `error` (input that cannot be used), `crash` (the candidate raised) or `skip`.
        reason: why, where it is no pass.
        exit_code: this result's share of the run's exit code.
        declared: whether the pair counts as declared; one that the candidate does not support does not.
        verdicts: an activation each, in the order of computation; those judged before a crash are kept.
    """

    pair: Pair
    outcome: str
    reason: str = ""
    exit_code: int = 0
    declared: bool = True
    seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = field(default=(), repr=False)

    @property
    def ran(self) -> bool:
        """Whether anything was executed and judged."""
        return self.judged > 0

    @property
    def judged(self) -> int:
        """How many activations were judged."""
        return sum(v.outcome in ("pass", "fail") for v in self.verdicts)

    @property
    def origins(self) -> tuple[Verdict, ...]:
        """Activations at which an error begins, in the order of computation."""
        return tuple(v for v in self.verdicts if v.role == "origin")

    @property
    def conforms(self) -> bool:
        """Whether everything that was observed passed."""
        return self.outcome == "pass"


def check(
    implementation: str | Implementation,
    golden: str | Golden = "tiny",
    device: str = "cpu",
    dtype: str = "float32",
    *,
    runs: int = 1,
) -> Result:
    """Judge one implementation (a name, `module:object`, or an object) on one golden; a frozen value, nothing is printed."""
    name = implementation if isinstance(implementation, str) else type(implementation).__name__
    pair = Pair(name, golden if isinstance(golden, str) else golden.name, device, dtype)
    start = time.perf_counter()
    verdicts: list[Verdict] = []
    outcome, reason, code, declared = _attempt(lambda: _judged(implementation, golden, pair, runs, verdicts))
    seconds = time.perf_counter() - start
    return Result(pair, outcome, reason, code, declared, seconds, tuple(verdicts))


class _Unsupported(Exception):
    """The candidate does not support the pair; not counted as declared."""


class _Skipped(Exception):
    """The machine lacks something; declared, and a counted skip."""


def _attempt(work: Callable[[], tuple[str, str]]) -> tuple[str, str, int, bool]:
    """Outcome, reason, exit code, declared: every way in which a pair can end."""
    try:
        outcome, reason = work()
        return outcome, reason, 0 if outcome == "pass" else 1, True
    except _Unsupported as why:
        return "skip", str(why), 0, False
    except (_Skipped, DependencyMissingError) as why:
        return "skip", str(why), 0, True
    except ConformanceError as error:
        return "error", str(error), error.exit_code, True
    except CandidateError as error:
        return "fail", str(error), 1, True
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}\n{traceback.format_exc()}", 1, True


def _judged(
    implementation: str | Implementation, golden: str | Golden, pair: Pair, runs: int, verdicts: list[Verdict]
) -> tuple[str, str]:
    format_named(pair.dtype)
    candidate = load(implementation) if isinstance(implementation, str) else implementation
    golden = load_golden(golden) if isinstance(golden, str) else golden
    _require_device(pair.device)
    checkpoint = golden.checkpoint
    _require_support(candidate, checkpoint, pair)
    runner = candidate.prepare(checkpoint, pair.device, pair.dtype)
    network = Network(checkpoint.architecture, rounded_weights(checkpoint, pair.dtype), golden.batch)
    # Stored activations are those of the unrounded weights, so only where rounding changes none may they be used.
    stored = golden.activations if "seed" in golden.entry else None
    judge = Judge(network, pair.dtype, pair.device, runs, stored)
    judged = []
    try:
        for item in judge.judge(_pairs(runner(golden.batch.on(pair.device)), network)):
            judged.append(item)
    finally:
        verdicts += settle(judged)
    return _outcome(verdicts)


def _outcome(verdicts: list[Verdict]) -> tuple[str, str]:
    failed = [v for v in verdicts if v.outcome == "fail"]
    judged = sum(v.outcome != "not_observed" for v in verdicts)
    if not judged:
        return "fail", "nothing was judged: the candidate yields no activation; it must expose at least its final hidden state"
    if failed:
        return "fail", f"{len(failed)} of {judged} judged activations fail, the first at {failed[0].activation}"
    return "pass", ""


def _pairs(output: Mapping[str, Any] | Iterator[tuple[str, Any]], network: Network) -> Iterator[tuple[str, Any]]:
    """A mapping in the order of computation (unknown names last), or the iterator as it is."""
    if not isinstance(output, Mapping):
        yield from output
        return
    order = {name: i for i, name in enumerate(network.table)}
    yield from sorted(output.items(), key=lambda item: order.get(item[0], len(order)))


def _require_device(device: str) -> None:
    import torch

    kind = device.split(":")[0]
    try:
        torch.empty(1, device=device)
    except Exception as error:
        raise _Skipped(f"device {device!r} is not to be had here ({kind}): {str(error).splitlines()[0]}") from error


def _require_support(candidate: Implementation, checkpoint: Checkpoint, pair: Pair) -> None:
    supports = getattr(candidate, "supports", None)
    if supports is None:
        return
    reason = supports(checkpoint.architecture, pair.device, pair.dtype)
    if reason is not None:
        raise _Unsupported(reason)


def median_rms(verdicts: tuple[Verdict, ...]) -> float | None:
    """Median over activations of the local RMS in sigma: how well the arithmetic model fits a correct candidate."""
    values = [v.local.error.rms for v in verdicts if v.local and v.local.error.rms is not None]
    return float(np.median(values)) if values else None
