"""What is said of a mistake besides its sentence: equation, cause, repair and source, from the table in `hints.md`."""

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Hint:
    """The words for one mistake, or for all whose names fit a pattern.

    Attributes:
        equation: the equation with the mistake, in the symbols of `conformance.oracle`; empty if the sentence states it.
        cause: the usual cause; empty if none is known.
        repair: how to repair the candidate.
        source: where it was reported, or `constructed`.
    """

    equation: str = ""
    cause: str = ""
    repair: str = ""
    source: str = ""


def _rows() -> Mapping[str, Hint]:
    """Return the rows of the table by name; a vertical bar within a cell is written with a backslash."""
    lines = [line for line in files("conformance.faults").joinpath("hints.md").read_text("utf-8").splitlines() if line[:1] == "|"]
    cells = ([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:])
    return {name: Hint(*words) for name, *words in cells}


HINTS = _rows()
_PATTERNS = sorted((name for name in HINTS if "*" in name), key=len, reverse=True)


@cache
def hint(name: str) -> Hint:
    """Return the hint for a mistake: each word is that of the name's own row, or of the longest pattern that the name fits."""
    fitting = [HINTS.get(name, Hint()), *(HINTS[pattern] for pattern in _PATTERNS if fnmatchcase(name, pattern))]
    return Hint(*(next(filter(None, words), "") for words in zip(*map(astuple, fitting), strict=True)))
