"""Caches: results computed once per array and kept as long as the array lives (other forms of a weight), or once per object.

`IdentityKey` is a cache key that compares by identity.
"""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Key = TypeVar("Key", bound=npt.NDArray[np.generic])
Result = TypeVar("Result")
Kind = TypeVar("Kind")
_HASH = "_hash"


def once_an_array(function: Callable[[Key], Result]) -> Callable[[Key], Result]:
    """Wrap `function` so that it is evaluated once for each array object; the array must not be altered afterwards."""
    kept: dict[int, tuple[weakref.ref[Key], Result]] = {}

    @wraps(function)
    def remembered(array: Key) -> Result:
        found = kept.get(id(array))
        if found is not None and found[0]() is array:
            return found[1]
        result, key = function(array), id(array)
        kept[key] = (weakref.ref(array, lambda _: kept.pop(key, None)), result)
        return result

    return remembered


def hashed_once(kind: type[Kind]) -> type[Kind]:
    """Let objects of a frozen dataclass keep their hashes; a copy in another process, where texts have others, computes its own."""
    computed = kind.__hash__

    def kept(self: Any) -> int:
        known: dict[str, Any] = self.__dict__
        if _HASH not in known:
            known[_HASH] = computed(self)
        return int(known[_HASH])

    def state(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _HASH}

    for name, method in (("__hash__", kept), ("__getstate__", state)):
        setattr(kind, name, method)
    return kind


if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  # Named like the class that it replaces.
        """The `functools.cached_property` without its lock, which Python 3.11 holds for all objects of a class while one computes.

        Threads that read the property of one object at the same time may each compute it, with the same result.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Return the value, computing it if it is not cached."""
            if instance is None:
                return self
            known = instance.__dict__
            if self.attrname not in known:
                known[self.attrname] = self.func(instance)
            return known[self.attrname]


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class IdentityKey(Generic[T]):
    """A key that is equal only to a key of the same object, not to a key of an equal object."""

    value: T

    def __hash__(self) -> int:
        """Return a hash of the object's identity."""
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        """Return whether the other key is of the same object."""
        return isinstance(other, IdentityKey) and other.value is self.value
