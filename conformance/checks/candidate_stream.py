"""The items that a candidate yields, mostly pairs (name, array): exceptions of its code are raised as its failures."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from conformance.candidates.stream import pairs
from conformance.results.termination import call_candidate

Item = TypeVar("Item")


def yielded(call: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """Return an iterator over the pairs that a call into a candidate yields; raises `CandidateFailure`."""
    return guarded(call_candidate(lambda: pairs(call(), ())))


def guarded(stream: Iterator[Item], setting: Callable[[], AbstractContextManager[object]] = nullcontext[object]) -> Iterator[Item]:
    """Yield a candidate's items one at a time; exceptions of the candidate's code are raised as its crash.

    Args:
        stream: the iterator, whose `next` runs the candidate's code.
        setting: context manager for each call of `next`. It does not enclose the yield, where it would apply to the consumer.
    """
    end: Any = object()
    while True:
        with setting():
            item = call_candidate(lambda: next(stream, end))
        if item is end:
            return
        yield item
