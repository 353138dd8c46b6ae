"""The duration of a case, and the part of it spent waiting for the candidate rather than judging.

A candidate may compute its next activations while the previous one is judged. That time counts as the judge's; only waiting counts
as the candidate's.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from conformance.results.result import Result


@dataclass
class Waited:
    """The seconds spent waiting for the candidate."""

    seconds: float = 0.0


_waited: ContextVar[Waited | None] = ContextVar("waited", default=None)


def timed(result_of: Callable[[], Result]) -> Result:
    """Return what `result_of` returns, with its duration in seconds and the part of it spent waiting for the candidate."""
    start = time.perf_counter()
    with counted() as waited:
        result = result_of()
    seconds = time.perf_counter() - start
    return replace(result, seconds=seconds, candidate_seconds=min(waited.seconds, seconds))


@contextmanager
def counted() -> Iterator[Waited]:
    """Count the time spent waiting for the candidate inside this context."""
    waited = Waited()
    with _counting_in(waited):
        yield waited


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time spent inside this context as waiting for the candidate; nested contexts count once."""
    waited, start = _waited.get(), time.perf_counter()
    try:
        with _counting_in(None):
            yield
    finally:
        if waited is not None:
            waited.seconds += time.perf_counter() - start


@contextmanager
def _counting_in(waited: Waited | None) -> Iterator[None]:
    token = _waited.set(waited)
    try:
        yield
    finally:
        _waited.reset(token)
