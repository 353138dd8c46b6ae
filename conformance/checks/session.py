"""Asking a candidate: whether it supports a case, for a runner, and for what it exposes, under the contract."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from conformance.candidates.registry import Implementation, Runner, supports_of
from conformance.errors import CandidateError, NotApplicable, Unsupported
from conformance.goldens.golden import Golden
from conformance.judge.validate import accepted_array, known
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint, own_copies
from conformance.model.features import FEATURES, features_of
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.termination import call_candidate


def refusal(candidate: Implementation, architecture: Architecture, device: str, dtype: str) -> str | None:
    """Why the candidate does not support a case; None where it does, or does not say."""
    supports = call_candidate(lambda: supports_of(candidate))
    if supports is None:
        return None
    reason = call_candidate(lambda: supports(architecture, device, dtype), may_refuse=True)
    if reason is not None and (not isinstance(reason, str) or not reason):
        raise CandidateError(f"supports() returns None or a reason, not {call_candidate(lambda: repr(reason))}")
    return reason


def require_support(candidate: Implementation, golden: Golden, device: str, dtype: str) -> None:
    """Raise `Unsupported` with the candidate's reason, or for a feature that the golden asks for and it does not name."""
    reason = refusal(candidate, golden.checkpoint.architecture, device, dtype)
    if reason is not None:
        raise Unsupported(reason)
    named = named_features(candidate)
    lacking = [name for name in features_of(golden.checkpoint.architecture, golden.batches.values()) if name not in named]
    if lacking:
        meaning = ", ".join(f"{name} ({FEATURES[name]})" for name in lacking)
        raise Unsupported(f"it does not name {meaning} in its `features`")


def named_features(candidate: Implementation) -> tuple[str, ...]:
    """What a candidate's `features` name, none where it has none; `CandidateError` for what is no tuple of known names."""
    features: Any = call_candidate(lambda: getattr(candidate, "features", None))
    if features is None:
        return ()
    if not isinstance(features, tuple | list | set | frozenset) or any(name not in FEATURES for name in features):
        found = call_candidate(lambda: repr(features))
        raise CandidateError(f"features is {found:.200}, expected a tuple of names, of {', '.join(FEATURES)}")
    return tuple(name for name in FEATURES if name in features)


_LACKING = {
    "gradients": "has no backward pass",
    "train": "has no training mode",
    "trainer": "has no training loop",
    "initial": "does not say what training starts from",
}


def ability(runner: Runner, name: str) -> Callable[..., Any]:
    """A runner's optional method, as `candidates.registry.Implementation` lists them; raises `NotApplicable` where it has none."""
    found = call_candidate(lambda: getattr(runner, name, None))
    if found is None:
        raise NotApplicable(f"its runner {_LACKING[name]}: no attribute `{name}`, as conformance.ModuleRunner has one")
    return found  # type: ignore[no-any-return]  # called under guard


def prepared(candidate: Implementation, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
    """The candidate's runner of that checkpoint.

    Raises:
        CandidateCrash: what it raised.
        CandidateError: it returned nothing that can be called.
    """
    runner = call_candidate(lambda: candidate.prepare(own_copies(checkpoint), device, dtype), may_refuse=True)
    if not callable(runner):
        found = call_candidate(lambda: repr(runner))
        raise CandidateError(f"prepare(checkpoint, device, dtype) returned {found}; it returns a runner, a function of a batch")
    return runner


def accepted(answer: Iterable[tuple[str, Any]], network: Network, dtype: str, device: str) -> Iterator[tuple[str, Array]]:
    """A candidate's pairs in float64, each as it comes; `CandidateError` at the first that breaks the contract."""
    seen: set[str] = set()
    for name, value in answer:
        row = known(name, network.table, network.architecture)
        try:
            if name in seen:
                raise CandidateError("yielded twice")
            seen.add(name)
            array = accepted_array(row, value, network.architecture, network.batch, dtype, device)
        except CandidateError as error:
            raise CandidateError(f"{name}: {error}") from error
        yield name, np.asarray(array, np.float64)
