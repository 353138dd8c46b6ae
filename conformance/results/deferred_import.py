"""Methods of results that are implemented by functions of the reports, imported when the method is called."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def deferred(function: str) -> Callable[[Any], Any]:
    """Return a method that calls the function `module:function` of this package on the instance."""

    def called(value: Any) -> Any:
        """Import and call the function."""
        module, _, name = function.partition(":")
        return getattr(import_module(f"conformance.{module}"), name)(value)

    return called
