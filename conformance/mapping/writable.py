"""Validation of a module's names before they are written to an adaptor, so that no name can become code in it."""

from collections.abc import Iterator
from keyword import iskeyword

from conformance.errors import UsageError
from conformance.mapping.proposal import Proposal

_QUOTES = frozenset('"\\')
LAYOUTS = ("fused", "interleaved", "per_head", "permuted", "stacked", "tied", "transposed")  # functions that an adaptor may import
# Names that an adaptor imports or gives to its own objects; `a` is the parameter of the function that builds the module.
_OWN = frozenset((*LAYOUTS, "LAYER", "OutputMap", "Tap", "TorchImplementation", "a", "call", "supported", "torch"))


def require_writable(proposal: Proposal) -> Proposal:
    """Return the proposal.

    Raises:
        UsageError: a name cannot be written in a string literal, or is not an identifier where one is needed.
    """
    for name in _quoted(proposal):
        if not name.isprintable() or _QUOTES & set(name):
            raise UsageError(_wrong(name, "printable characters without quotes and backslashes"))
    for name in proposal.objects:
        if require_identifiers(name) in _OWN:
            raise UsageError(_wrong(name, "one that the adaptor does not need itself"))
    if proposal.last:  # len(model.layers) - 1
        require_identifiers(proposal.last.removeprefix("len(").removesuffix(") - 1"))
    return proposal


def require_identifiers(name: str) -> str:
    """Return the name; raise `UsageError` if a part of it is not a Python identifier."""
    if not is_attribute_path(name):
        raise UsageError(_wrong(name, "a name of Python's"))
    return name


def is_attribute_path(name: str) -> bool:
    """Return whether every part of a dotted name is a Python identifier."""
    return all(part.isidentifier() and not iskeyword(part) for part in name.split("."))


def _wrong(name: str, expected: str) -> str:
    return f"the module has the name {name!a:.100}, expected {expected}: rename it, or write the adaptor by hand"


def _quoted(proposal: Proposal) -> Iterator[str]:
    """Yield the names that are written in strings and comments."""
    yield from (held.tensor.name for held in proposal.parameters)
    yield from (one.tap.path for one in proposal.activations)
    elements = [one.tap.element for one in proposal.activations]
    yield from (element for element in elements if isinstance(element, str))
    yield from (*proposal.buffers, *proposal.unmapped)
