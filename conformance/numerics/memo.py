"""What is computed of an array once, and kept as long as the array lives: a weight's other forms, of which every block has need."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

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
