"""What a judgement asks of a candidate: passes, each a call of its runner and a network of the oracle's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.candidates.registry import Implementation, Runner
from conformance.candidates.stream import pairs
from conformance.checks.placement import inputs_device
from conformance.checks.session import prepared, require_support
from conformance.goldens.golden import Golden
from conformance.model.batch import Batch
from conformance.model.checkpoint import rounded_weights
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.termination import call_candidate


@dataclass(frozen=True)
class Pass:
    """One call.

    Attributes:
        label: what verdicts call it.
        batch: the golden's name of its batch; empty where what the golden stores is not what is true of it.
        network: the oracle's.
        call: the candidate's answer; raises `CandidateFailure`.
        again: the same of another batch; None where that is not to be asked.
        is_of_gradients: whether it yields gradients of parameters and nothing else, so that each is judged from the token ids: no
            output is asked of it, and no mistake of a hidden step is looked for.
        said: where values fail, what can be said of it in words.
        wrong: of a false-alarm probability, what of an activation is wrong whatever its values are, in words, by its name.
    """

    label: str
    batch: str
    network: Network
    call: Callable[[], Any]
    again: "Callable[[Batch], Pass] | None" = None
    wrong: Callable[[float], Mapping[str, str]] = lambda alpha: {}
    said: "Callable[[], str] | None" = None
    is_of_gradients: bool = False


Passes = Callable[[Implementation, Golden, Case], Sequence[Pass]]
"""From a candidate, a golden and a case to what is to be asked; raises what `opened` raises."""


def opened(candidate: Implementation, golden: Golden, case: Case) -> Runner:
    """The candidate's runner of a golden's checkpoint.

    Raises:
        Unsupported: it does not support the case.
        CandidateFailure: it cannot be prepared.
    """
    require_support(candidate, golden, case.device, case.dtype)
    return prepared(candidate, golden.checkpoint, case.device, case.dtype)


def forward_passes(candidate: Implementation, golden: Golden, case: Case) -> Sequence[Pass]:
    """A forward pass of every batch."""
    return forward_passes_of(opened(candidate, golden, case), golden, case, inputs_device(candidate, case.device))


def forward_passes_of(runner: Runner, golden: Golden, case: Case, device: str) -> Sequence[Pass]:
    """A forward pass of every batch by a runner that is there, its inputs on that device."""
    weights = rounded_weights(golden.checkpoint, case.dtype)

    def of(name: str, batch: Batch) -> Pass:
        network = Network(golden.checkpoint.architecture, weights, batch.held_in(case.dtype))
        return Pass(name, name, network, partial(_called, runner, batch, device), partial(of, ""))

    return [of(name, batch) for name, batch in golden.batches.items()]


def with_config(golden: Golden, **settings: Any) -> Golden:
    """The golden with these settings in its config."""
    checkpoint = replace(golden.checkpoint, architecture=golden.checkpoint.architecture.with_(**settings))
    return replace(golden, make_checkpoint=lambda: checkpoint)


def yielded(call: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """What a call into a candidate yields, pair by pair."""
    return guarded(call_candidate(lambda: pairs(call(), ())))


def guarded(stream: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """A candidate's pairs, as they come; what its code raises meanwhile is its crash."""
    end = object()
    while (item := call_candidate(lambda: next(stream, end))) is not end:
        yield item  # type: ignore[misc]  # not the end, so a pair


def _called(runner: Runner, batch: Batch, device: str) -> Any:
    return call_candidate(lambda: runner(batch.on(device)))
