"""What a value of results says of itself by a function of the reports, which know it: imported only when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(function: str) -> Callable[[Any], Any]:
    """What `module:function`, of this package, makes of the value."""

    def called(value: Any) -> Any:
        """In the reports' words."""
        module, _, name = function.partition(":")
        return getattr(import_module(f"conformance.{module}"), name)(value)

    return called
