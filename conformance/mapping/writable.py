"""Names of a module that an adaptor can hold: it is Python, and nothing that a module is called may become code in it."""

from collections.abc import Iterator
from keyword import iskeyword

from conformance.errors import UsageError
from conformance.mapping.proposal import Proposal

_QUOTES = frozenset('"\\')


def require_writable(proposal: Proposal) -> Proposal:
    """The proposal; `UsageError` for a name that can stand in no string, or is no identifier where it must be."""
    for name in _quoted(proposal):
        if not name.isprintable() or _QUOTES & set(name):
            raise UsageError(_wrong(name, "printable characters without quotes and backslashes"))
    for name in proposal.objects:
        require_identifiers(name)
    if proposal.last:  # len(model.layers) - 1
        require_identifiers(proposal.last.removeprefix("len(").removesuffix(") - 1"))
    return proposal


def require_identifiers(name: str) -> str:
    """The name; `UsageError` where its parts are none of Python's."""
    if not all(part.isidentifier() and not iskeyword(part) for part in name.split(".")):
        raise UsageError(_wrong(name, "a name of Python's"))
    return name


def _wrong(name: str, expected: str) -> str:
    return f"the module has the name {name!a:.100}, expected {expected}: rename it, or write the adaptor by hand"


def _quoted(proposal: Proposal) -> Iterator[str]:
    """What stands in strings and comments."""
    yield from (held.tensor.name for held in proposal.parameters)
    yield from (one.tap.path for one in proposal.activations)
    elements = (proposal.element, *(one.tap.element for one in proposal.activations))
    yield from (element for element in elements if isinstance(element, str))
    yield from (*proposal.buffers, *proposal.unmapped)
