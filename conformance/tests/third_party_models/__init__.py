"""BERTs as strangers write them: names and layouts of their own, no adaptor. Those in `mistaken` have one mistake each."""

from functools import cache
from importlib import import_module
from typing import Any

from conformance.mapping.mapped import proposed
from conformance.mapping.proposal import Proposal

STRANGERS = __name__


def stranger(name: str) -> Any:
    """A class or function by `module:name`."""
    module, _, factory = name.partition(":")
    return getattr(import_module(f"{STRANGERS}.{module}"), factory)


@cache
def proposal(name: str) -> Proposal:
    """What `map` proposes for it."""
    module, _, factory = name.partition(":")
    return proposed(stranger(name), factory, f"{STRANGERS}.{module}")
