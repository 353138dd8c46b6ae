"""What is computed once and kept: of an array, as long as that lives (a weight's other forms), and of an object."""

import functools
import weakref
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from conformance.numerics.formats import Array

Result = TypeVar("Result")


def once_an_array(function: Callable[[Array], Result]) -> Callable[[Array], Result]:
    """`function`, evaluated once for each array object. The array must not be altered afterwards."""
    kept: dict[int, tuple[weakref.ref[Array], Result]] = {}

    @wraps(function)
    def remembered(array: Array) -> Result:
        found = kept.get(id(array))
        if found is not None and found[0]() is array:
            return found[1]
        result, key = function(array), id(array)
        kept[key] = (weakref.ref(array, lambda _: kept.pop(key, None)), result)
        return result

    return remembered


if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  # the name that it stands for
        """That of `functools` without its lock, which Python 3.11 holds for every object of a class while one computes.

        Threads that ask for one object's at the same time may both compute it, to the same end.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """The value, computed where it is not known."""
            if instance is None:
                return self
            known = instance.__dict__
            if self.attrname not in known:
                known[self.attrname] = self.func(instance)
            return known[self.attrname]
