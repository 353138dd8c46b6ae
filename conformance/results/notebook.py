"""Values that show themselves in a notebook, by a function that knows them and is imported only when one is shown."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def shown_by(function: str) -> Callable[[Any], str]:
    """A `_repr_html_`: what `module:function`, of this package, makes of the value."""

    def html(value: Any) -> str:
        """For notebooks."""
        module, _, name = function.partition(":")
        return str(getattr(import_module(f"conformance.{module}"), name)(value))

    return html
