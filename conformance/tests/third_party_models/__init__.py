"""BERTs in the style of third-party projects: their own names and layouts, no adaptor. Those in `mistaken` have one mistake
each."""

from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any

from conformance.mapping.mapped import proposed
from conformance.mapping.proposal import Proposal

STRANGERS = __name__


def stranger(name: str) -> Any:
    """Return a class or function by `module:name`."""
    module, _, factory = name.partition(":")
    return attrgetter(factory)(import_module(f"{STRANGERS}.{module}"))


@cache
def proposal(name: str) -> Proposal:
    """Return the proposal that `map` makes for a class or function given as `module:name`."""
    module, _, factory = name.partition(":")
    return proposed(stranger(name), factory, f"{STRANGERS}.{module}")
