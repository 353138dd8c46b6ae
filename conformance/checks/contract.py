"""Query a candidate under the contract: whether it supports a case, its runner, and what it yields.

Exceptions of its code are raised as its failures.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from conformance.candidates.arrays import pairs
from conformance.candidates.registry import Implementation, Runner, supports_of
from conformance.errors import CandidateError, NotApplicable, Unsupported
from conformance.goldens.golden import Golden
from conformance.judge.requirements import accepted_array, row_of
from conformance.model.architecture import FEATURES, Architecture, features_of
from conformance.model.checkpoint import Checkpoint, own_copies
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.termination import call_candidate

Item = TypeVar("Item")


def refusal(candidate: Implementation, architecture: Architecture, device: str, dtype: str) -> str | None:
    """Return why the candidate does not support a case, or None; raise `CandidateError` if its answer is not a reason."""
    supports = call_candidate(lambda: supports_of(candidate))
    if supports is None:
        return None
    reason = call_candidate(lambda: supports(architecture, device, dtype), may_refuse=True)
    if reason is not None and (not issubclass(type(reason), str) or not str.__str__(reason)):
        raise CandidateError(f"supports() returns None or a reason, not {_written(reason)}")
    return None if reason is None else str.__str__(reason)


def require_support(candidate: Implementation, golden: Golden, device: str, dtype: str) -> None:
    """Raise `Unsupported` with the candidate's reason, or for a required feature that the candidate does not name."""
    reason = refusal(candidate, golden.checkpoint.architecture, device, dtype)
    if reason is not None:
        raise Unsupported(reason)
    named = named_features(candidate)
    lacking = [name for name in features_of(golden.checkpoint.architecture, golden.batches.values()) if name not in named]
    if lacking:
        meaning = ", ".join(f"{name} ({FEATURES[name]})" for name in lacking)
        raise Unsupported(f"it does not name {meaning} in its `features`")


def named_features(candidate: Implementation) -> tuple[str, ...]:
    """Return the features that a candidate names, if any; raise `CandidateError` if they are not a tuple of known names."""
    features: Any = call_candidate(lambda: getattr(candidate, "features", None))
    if features is None:
        return ()
    if not call_candidate(lambda: isinstance(features, tuple | list | set | frozenset) and all(n in FEATURES for n in features)):
        raise CandidateError(f"features is {_written(features):.200}, expected a tuple of names, of {', '.join(FEATURES)}")
    return call_candidate(lambda: tuple(name for name in FEATURES if name in features))


def _written(value: Any) -> str:
    """Return what `repr` says of a value from the candidate."""
    return call_candidate(lambda: str.__str__(repr(value)))


_LACKING = {
    "gradients": "has no backward pass",
    "train": "has no training mode",
    "trainer": "has no training loop",
    "initial": "has no parameters that training starts from",
}
# The argument of TorchImplementation that gives its runner the ability.
_SETTINGS = {"trainer": "train", "initial": "untrained"}


def ability(runner: Runner, name: str) -> Callable[..., Any]:
    """Return an optional method of a runner (see `candidates.registry.Implementation`); raise `NotApplicable` if it is missing."""
    found = call_candidate(lambda: getattr(runner, name, None))
    if found is None:
        attribute = f"an attribute `{name}`, as conformance.ModuleRunner has one"
        setting = f"; a TorchImplementation has `{_SETTINGS[name]}=` for it" if name in _SETTINGS else ""
        raise NotApplicable(f"its runner {_LACKING[name]}, that is, {attribute}{setting}")
    return found  # type: ignore[no-any-return]  # callers guard the call


def prepared(candidate: Implementation, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
    """Return the candidate's runner for a checkpoint.

    Raises:
        CandidateCrash: if `prepare` raises.
        CandidateError: if `prepare` returns something that is not callable.
        Unsupported: if `prepare` refuses the case.
    """
    runner = call_candidate(lambda: candidate.prepare(own_copies(checkpoint), device, dtype), may_refuse=True)
    if not callable(runner):
        raise CandidateError(
            f"prepare(checkpoint, device, dtype) returned {_written(runner)}; it returns a runner, a function of a batch"
        )
    return runner


def accepted(answer: Iterable[tuple[str, Any]], network: Network, dtype: str, device: str) -> Iterator[tuple[str, Array]]:
    """Yield a candidate's (name, array) pairs in float64; raise `CandidateError` at the first that violates the contract.

    Losses that the batch does not define are omitted.
    """
    seen: set[str] = set()
    for name, value in answer:
        if isinstance(name, str) and name in network.undefined_losses and name not in seen:
            seen.add(name)
            continue
        row = row_of(name, network.table, network.architecture)
        try:
            if name in seen:
                raise CandidateError("yielded twice")
            seen.add(name)
            array = accepted_array(row, value, network, dtype, device)
        except CandidateError as error:
            raise CandidateError(f"{name}: {error}") from error
        yield name, np.asarray(array, np.float64)


def yielded(call: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """Return an iterator over the pairs that a call into a candidate yields; raises `CandidateFailure`."""
    return guarded(call_candidate(lambda: pairs(call(), ())))


def guarded(stream: Iterator[Item], setting: Callable[[], AbstractContextManager[object]] = nullcontext[object]) -> Iterator[Item]:
    """Yield a candidate's items one at a time; exceptions of the candidate's code are raised as its crash.

    The context manager `setting` is for each call of `next`. It does not enclose the yield, where it would apply to the consumer.
    """
    end: Any = object()
    while True:
        with setting():
            item = call_candidate(lambda: next(stream, end))
        if item is end:
            return
        yield item
