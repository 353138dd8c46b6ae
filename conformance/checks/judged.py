"""Checks that are judgements of a golden: of all that a candidate exposes, or of a part of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.candidates.registry import supports_of
from conformance.candidates.stream import pairs
from conformance.checks.backward import backward_passes
from conformance.checks.check import CheckRequest
from conformance.checks.initialization import initial_passes
from conformance.checks.moments import watched
from conformance.checks.optimizer import optimizer_passes, schedule_passes
from conformance.checks.passes import Passes, forward_passes
from conformance.checks.run import check_values
from conformance.checks.session import named_features
from conformance.checks.training import training_passes
from conformance.model.activations import outputs as outputs_of
from conformance.model.activations import table
from conformance.results.result import Result

Stream = Iterator[tuple[str, Any]]
Look = Callable[[Any, Stream], Stream]
View = Callable[[CheckRequest], Any]


@dataclass(frozen=True)
class Judged:
    """The judgement, on a golden's batches, of what `view` leaves of the candidate; `whole` where that is all that it exposes."""

    view: View
    whole: bool = False
    passes: Passes = forward_passes

    def __call__(self, request: CheckRequest) -> Result:
        """The judgement."""
        candidate, require, depth = self.view(request), request.require if self.whole else (), request.plan.depth
        device, dtype, runs = request.case.device, request.case.dtype, request.runs
        result = check_values(candidate, request.golden, device, dtype, require=require, runs=runs, depth=depth, passes=self.passes)
        return replace(result, require=tuple(require))


@dataclass(frozen=True)
class _Viewed:
    """A candidate whose stream a function filters or inspects; `looking(checkpoint, device, dtype)` returns that function."""

    candidate: Any
    looking: Callable[[Any, str, str], Look]

    @property
    def features(self) -> tuple[str, ...]:
        return named_features(self.candidate)

    def supports(self, architecture: Any, device: str, dtype: str) -> str | None:
        supports = supports_of(self.candidate)
        return supports(architecture, device, dtype) if supports else None

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        look, runner = self.looking(checkpoint, device, dtype), self.candidate.prepare(checkpoint, device, dtype)
        return lambda batch: look(batch, pairs(runner(batch), table(checkpoint.architecture)))


def _showing(wanted: Callable[[str, Any], bool]) -> View:
    """Only the activations that `wanted(name, architecture)` lets through."""

    def only(checkpoint: Any, device: str, dtype: str) -> Look:
        return lambda batch, stream: ((n, v) for n, v in stream if wanted(n, checkpoint.architecture))

    return lambda request: _Viewed(request.candidate, only)


def _is_output(name: str, architecture: Any) -> bool:
    return name in outputs_of(architecture)


def _as_it_is(request: CheckRequest) -> Any:
    """The outputs alone; of a program that must be changed to be looked into, those of the program as it is."""
    return _showing(_is_output)(replace(request, candidate=getattr(request.candidate, "unobserved", request.candidate)))


def _is_stage(name: str, architecture: Any) -> bool:
    """After the embedding, and after every layer."""
    whole_layer = name.endswith("output.LayerNorm") and not name.endswith("attention.output.LayerNorm")
    return name in ("embeddings.LayerNorm", "embeddings.sum") or whole_layer or _is_output(name, architecture)


def _with_its_moments(request: CheckRequest) -> Any:
    """All that it exposes; means and variances are checked on the way."""
    return _Viewed(request.candidate, partial(watched, calls=request.runs * len(request.golden.batches)))


values = Judged(lambda request: request.candidate, whole=True)
outputs = Judged(_as_it_is)
stages = Judged(_showing(_is_stage))
moments = Judged(_with_its_moments)
gradients = Judged(lambda request: request.candidate, passes=backward_passes)
training_mode = Judged(lambda request: request.candidate, passes=training_passes)
optimizer_step = Judged(lambda request: request.candidate, passes=optimizer_passes)
initialization = Judged(lambda request: request.candidate, passes=initial_passes)
schedule = Judged(lambda request: request.candidate, passes=schedule_passes)
