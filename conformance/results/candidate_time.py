"""How long a case takes, and how long it waits for its candidate: the candidate's own seconds, apart from those of the judge.

A candidate may compute its next activations while the last one is judged. That time is the judge's: only waiting counts.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from conformance.results.result import Result


@dataclass
class Waited:
    """Seconds that were waited for the candidate."""

    seconds: float = 0.0


_waited: ContextVar[Waited | None] = ContextVar("waited", default=None)


def timed(result_of: Callable[[], Result]) -> Result:
    """What `result_of` returns, with the seconds that it took, and those of them that were waited for the candidate."""
    start = time.perf_counter()
    with counted() as waited:
        result = result_of()
    seconds = time.perf_counter() - start
    return replace(result, seconds=seconds, candidate_seconds=min(waited.seconds, seconds))


@contextmanager
def counted() -> Iterator[Waited]:
    """What is waited for the candidate inside."""
    waited = Waited()
    with _counting_in(waited):
        yield waited


@contextmanager
def waiting() -> Iterator[None]:
    """What happens inside is the candidate's; one inside another counts once."""
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
