"""What a runner returns, as a stream of (activation name, value)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conformance.errors import CandidateError


def pairs(output: Any, order: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """A mapping in the order of computation (unknown names last), or an iterable's pairs as they come.

    Raises:
        CandidateError: it is neither, or yields what is no pair.
    """
    if isinstance(output, Mapping):
        yield from sorted(output.items(), key=lambda item: order.get(item[0], len(order)))
        return
    if not isinstance(output, Iterable):
        raise CandidateError(f"a runner returns a mapping or an iterable of pairs, not {type(output).__name__}")
    for item in output:
        if not isinstance(item, tuple) or len(item) != 2:
            raise CandidateError(f"a runner yields pairs of a name and an array, not {type(item).__name__}")
        yield item
