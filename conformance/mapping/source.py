"""The adaptor of a proposal as Python source: a `TorchImplementation` with `{layer}` patterns, and open questions as comments.

There is one line for each entry of a table, however long. Names of the module are validated before they are written, so that no
name can become code.
"""

import re
from collections.abc import Iterator, Sequence
from keyword import iskeyword
from textwrap import wrap

from conformance.candidates.capture import Tap
from conformance.candidates.layouts import HEAD, LAYER, LAYOUTS, each_layer
from conformance.errors import UsageError
from conformance.mapping.call import DTYPE
from conformance.mapping.proposal import Held, Proposal
from conformance.mapping.signature import Requirement
from conformance.mapping.taps import Located
from conformance.model.activations import last_hidden
from conformance.names import printable, words

WIDTH = 88
_IN_LAYER = f"encoder.layer.{LAYER}"
_LENGTHS_ALONE = (
    "    if batch.attention_mask.diff(dim=1).gt(0).any():",
    '        raise ValueError("the mask has padding before a token, which lengths cannot say")',
)
_QUOTES = frozenset('"\\')
# Names that an adaptor imports or gives to its own objects; `a` is the parameter of the function that builds the module.
_OWN = frozenset((*LAYOUTS, "LAYER", "OutputMap", "Tap", "TorchImplementation", "a", "call", "supported", "torch"))


def variable(proposal: Proposal) -> str:
    """Return the name of the variable that holds the implementation in the adaptor."""
    found = "_".join(w for w in words(proposal.name) if not w.isdigit()) or "module"
    return f"{found}_implementation" if iskeyword(found) or found in proposal.objects else found


def adaptor(proposal: Proposal) -> str:
    """Return the source of the adaptor."""
    return "\n".join([*_head(proposal), "", *body(proposal)]) + "\n"


def _head(proposal: Proposal) -> Iterator[str]:
    yield f'"""{proposal.name} as an implementation for bert-conformance."""'
    yield ""
    copied = "deepcopy" in proposal.objects
    yield from ["from copy import deepcopy", ""] if copied else []
    own: dict[str, list[str]] = {}
    for name, value in proposal.objects.items():
        if name != "deepcopy":
            home = proposal.home if name == proposal.name else getattr(value, "__module__", proposal.home)
            own.setdefault(require_identifiers(home), []).append(name.partition(".")[0])
    yield from ["import torch"] if proposal.call.takes_dtype else []
    yield f"from conformance import {', '.join(public_names(proposal))}"
    yield ""  # between third-party and local imports, as in isort
    yield from (f"from {home} import {', '.join(sorted(found))}" for home, found in sorted(own.items()))


def public_names(proposal: Proposal) -> list[str]:
    """Return the names of `conformance` that the adaptor uses, classes first."""
    used = sorted({name for held in proposal.parameters for name in LAYOUTS if f"{name}(" in held.layout})
    kinds = ["Tap"] if any(not _is_plain(location.tap) for location in proposal.activations) else []
    kinds += ["OutputMap"] if any(location.arrangement or location.packed for location in proposal.activations) else []
    return [*sorted([*kinds, "TorchImplementation"]), *used]


def body(proposal: Proposal) -> Iterator[str]:
    """Yield the lines of the adaptor below the imports."""
    named = [name for held in proposal.parameters for name in held.names]
    named += [name for location in proposal.activations for name in location.names]
    yield from [f'LAYER = "{_IN_LAYER}"', "", ""] if any(_IN_LAYER in name for name in named) else [""]
    yield from _call(proposal)
    yield from ["", ""]
    if proposal.requirements:
        yield from [*_supported(proposal.requirements), "", ""]
    for kind, sentences in (("Open", proposal.open), ("Differs", proposal.differs)):
        for sentence in sentences:
            yield from wrap(
                f"{kind}: {printable(sentence)}.", WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False
            )
    yield f"{variable(proposal)} = TorchImplementation("
    yield f'    name="{variable(proposal).replace("_", "-")}",'
    yield f"    build=lambda a: {proposal.builder.text},"
    yield "    parameters={"
    yield from (f'        "{held.tensor.name}": {_layout(held)},' for held in proposal.parameters)
    yield "    },"
    yield "    activations={"
    yield from (f"        {_tap(location.tap)}: {_shown(location)}," for location in proposal.activations)
    yield "    },"
    yield "    call=call,"
    ignored = [each_layer(name, "*").replace(HEAD, "*") for name in proposal.ignored]
    for what, patterns in (("unused", proposal.unused), ("ignored", ignored)):
        if patterns:
            yield f"    {what}=[{', '.join(map(_quoted, patterns))}],"
    yield from ["    supported=supported,"] if proposal.requirements else []
    if not proposal.is_trainable:
        yield "    evaluation_only=True,"
    yield ")"


def _supported(requirements: Sequence[Requirement]) -> Iterator[str]:
    yield "def supported(a, device, dtype):"
    for each in requirements:
        yield from (f"    if {each.lacking}:", f'        return "{each.reason}"')
    yield "    return None"


def _call(proposal: Proposal) -> Iterator[str]:
    yield "def call(model, batch):"
    filled = any(f"batch.{name}" in proposal.call.arguments for name in ("attention_mask", "token_type_ids"))
    yield from ["    batch = batch.filled()"] if filled else []
    yield from [f"    dtype = {DTYPE}"] if proposal.call.takes_dtype else []
    yield from _LENGTHS_ALONE if proposal.call.takes_lengths else []
    yield f"    {'outputs = ' if proposal.returned_outputs else ''}model({proposal.call.arguments})"
    yield from _last_layer(proposal)
    if proposal.returned_outputs:
        yield "    return {"
        for location in proposal.returned_outputs:
            yield f"        {_output(location, proposal)}: outputs{location.selector}{location.arrangement.removeprefix('x')},"
        yield "    }"


def _last_layer(proposal: Proposal) -> Iterator[str]:
    """Yield a line that counts the layers in the module, if an output is named or selected by that."""
    outputs = proposal.returned_outputs
    if any(_is_last_hidden(location, proposal) or re.search(r"[\[{]last\b", location.selector) for location in outputs):
        yield f"    last = {proposal.last}"


def _is_last_hidden(location: Located, proposal: Proposal) -> bool:
    return location.names[0] == last_hidden(proposal.architecture)


def _output(location: Located, proposal: Proposal) -> str:
    """Return the expression of the name of an output, in terms of the number of the last layer."""
    return 'f"encoder.layer.{last}.output.LayerNorm"' if _is_last_hidden(location, proposal) else f'"{location.names[0]}"'


def _quoted(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _name(name: str) -> str:
    """Return a name as a Python string, with `LAYER` in place of the common prefix of the names in a layer."""
    return f'f"{name.replace(_IN_LAYER, "{LAYER}")}"' if _IN_LAYER in name else f'"{name}"'


def _layout(held: Held) -> str:
    return held.layout.replace("{}", ", ".join(map(_name, held.names)))


def _is_plain(tap: Tap) -> bool:
    return tap == Tap(tap.path)


def _tap(tap: Tap) -> str:
    if _is_plain(tap):
        return f'"{tap.path}"'
    more = [f'"{tap.what}"'] if tap.what != "output" else []
    more += [f"element={_quoted(tap.element)}"] if tap.element != 0 else []
    more += [f"call={tap.call}"] if tap.call else []
    return f'Tap("{tap.path}", {", ".join(more)})'


def _shown(location: Located) -> str:
    names = _name(location.names[0]) if len(location.names) == 1 else f"({', '.join(map(_name, location.names))})"
    if not (location.arrangement or location.packed):
        return names
    parts = f"{location.arrangement or 'x'}.chunk({len(location.names)}, -1)" if len(location.names) > 1 else location.arrangement
    return f"OutputMap({names}{f', lambda x: {parts}' if parts else ''}{', packed=True' if location.packed else ''})"


def require_writable(proposal: Proposal) -> Proposal:
    """Return the proposal.

    Raises:
        UsageError: a name cannot be written in a string literal, or is not an identifier where one is needed.
    """
    for name in _quoted_names(proposal):
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


def _quoted_names(proposal: Proposal) -> Iterator[str]:
    """Yield the names that are written in strings and comments."""
    yield from (held.tensor.name for held in proposal.parameters)
    yield from (location.tap.path for location in proposal.activations)
    elements = [location.tap.element for location in proposal.activations]
    yield from (element for element in elements if isinstance(element, str))
    yield from proposal.ignored
