"""The pairs that a candidate yields, (name, array): exceptions of its code are raised as its failures."""

from collections.abc import Callable, Iterator
from typing import Any

from conformance.candidates.stream import pairs
from conformance.results.termination import call_candidate


def yielded(call: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """Return an iterator over the pairs that a call into a candidate yields; raises `CandidateFailure`."""
    return guarded(call_candidate(lambda: pairs(call(), ())))


def guarded(stream: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield a candidate's pairs; exceptions of the candidate's code are raised as its crash."""
    end = object()
    while (item := call_candidate(lambda: next(stream, end))) is not end:
        yield item  # type: ignore[misc]  # `item` is a pair, since it is not `end`
