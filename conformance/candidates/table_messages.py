"""Messages about entries of a table that do not fit."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from conformance.candidates.layouts import LAYER, is_layered

_LAYER_NUMBER = re.compile(r"(?<=\.layer\.)\d+(?=\.)")


def folded(wrong: Sequence[str]) -> Iterator[str]:
    """Yield the messages; of those that differ only in the numbers in a path (`layer.0.`), the first, a count and the last."""
    alike: dict[str, list[str]] = {}
    for sentence in wrong:
        alike.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "0", sentence), []).append(sentence)
    for first, *more in alike.values():
        yield first
        yield from [f"… and {len(more) - 1} more like it, to:"] if more[1:] else []
        yield from more[-1:]


def hint(name: str, known: Iterable[str], used: Collection[str] = ()) -> str:
    """Return advice about an unknown name: what is wrong with its form, or the nearest known name that is not in use."""
    if "*" in name:
        return f"; each tensor is mapped by its name, in which {LAYER} stands for each layer, and * is no pattern"
    if is_layered(name):
        return f"; {LAYER} in it needs {LAYER} on the other side as well, or stacked()"
    near = get_close_matches(name, [n for n in known if n not in used], 1, 0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


def absent_tensor(name: str, own: Mapping[str, Any], used: Collection[str], parameters: Sequence[str]) -> str:
    """Return the message that the module has no tensor of a mapped name, with advice.

    Args:
        name: the name in the table.
        own: the tensors of the module's state dict, by name.
        used: the names in the table.
        parameters: the checkpoint's parameters of which the tensor would be made.
    """
    near = hint(name, own, used)
    owner, _, last = name.rpartition(".")
    if not near and last == "bias" and f"{owner}.weight" in own:
        patterns = ", ".join(dict.fromkeys(_LAYER_NUMBER.sub("*", p) for p in parameters))
        near = (
            "; if the module has no bias there by mistake, add it; to judge it as it is, remove the entry and list "
            f"{patterns} in `unused`"
        )
    return f"matches nothing: the module has no {name!r}{near}"
