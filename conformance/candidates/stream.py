"""Conversion of a runner's result to a stream of (activation name, value)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conformance.errors import CandidateError
from conformance.names import class_name

# Names of items that are no activations. The value of each is an `Unreadable`, whose reason is a sentence for the report.
UNCOMPARED = "the returned value"  # what of it was not compared with activations
GUESSED = "the mapping"  # what of it no value confirms
NOTES = (UNCOMPARED, GUESSED)
Stream = Iterator[tuple[str, Any]]  # pairs of an activation's name and its value, in the order of computation


def pairs(output: Any, names: Iterable[str], *, notes: bool = False) -> Stream:
    """Yield the pairs of a mapping in the order of `names`, unknown names last, or the pairs of an iterable in its own order.

    Items with a name of `NOTES` are left out, unless `notes` is true.

    Raises:
        CandidateError: `output` is neither a mapping nor an iterable, or yields an item that is not a pair.
    """
    if isinstance(output, Mapping):
        order = {name: i for i, name in enumerate(names)}
        named = ((_plain(name), value) for name, value in output.items())
        yield from sorted(named, key=lambda item: order.get(item[0], len(order)))
        return
    if not isinstance(output, Iterable):
        raise CandidateError(f"a runner returns a mapping or an iterable of pairs, not {class_name(output)}")
    for item in output:
        if not isinstance(item, tuple) or len(item) != 2:
            raise CandidateError(f"a runner yields pairs of a name and an array, not {class_name(item)}")
        name = _plain(item[0])
        if notes or name not in NOTES:
            yield name, item[1]


def _plain(name: Any) -> Any:
    """Return an instance of a subclass of `str` as a plain `str`, since a subclass may override comparison and hashing."""
    return str.__str__(name) if isinstance(name, str) else name
