"""Methods of results that functions of the reports implement, which are imported when the method is called."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(function: str) -> Callable[[Any], Any]:
    """A method that returns what `module:function`, of this package, returns for the value."""

    def called(value: Any) -> Any:
        """Call the function."""
        module, _, name = function.partition(":")
        return getattr(import_module(f"conformance.{module}"), name)(value)

    return called
