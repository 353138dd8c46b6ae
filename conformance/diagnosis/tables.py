"""Parser for tables as libraries print them: brackets, numbers, ellipses, optionally with a name before and a shape after."""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.model.files import require_printed
from conformance.numerics.formats import FORMATS

ELLIPSES = ("...", "…")


class PrintedNumber(str):
    """The text of a number, as distinguished from other text."""

    __slots__ = ()


_BEFORE = 300  # characters before a bracket that are searched for a table's name
_WORD = string.ascii_letters + string.digits + "_."
_TABLES = 2**16  # maximum number of tables: more than a BERT of a thousand layers has activations
_AXES = 16  # maximum nesting depth, more than any table has
_CALL = r"(?:[A-Za-z_][\w.]*!?\()"  # `tensor(` or `np.float32(` around a number or a part of a table
_TOKEN = re.compile(
    rf"\s*(?:(?P<open>\[)|(?P<close>\])|(?P<gap>\.\.\.|…)|(?P<comma>,)|(?P<around>{_CALL}|\)"
    r"|(?:dtype|device|grad_fn|requires_grad)=[^\s,)\]]*)|(?P<number>[^\s,()\[\]]+))"
)
_LIKE_A_NUMBER = re.compile(r"[-+]?(?:\d|\.\d|nan|inf)", re.IGNORECASE)
_FIRST = re.compile(  # matches up to and including the first word of a table, which is a number or an ellipsis
    rf"(?:\s*(?:\[|{_CALL})){{1,{2 * _AXES}}}\s*"
    r"(?:[-+]?\.?\d[\d.]*(?:e[-+]?\d+)?(?:_?f\d*)?(?=[\s,\])]|$)|[-+]?(?:nan|inf)\b|\.\.\.|…)",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"[\[ ]+")
_TYPED = re.compile(r"(?<=[\d.])_?f(?:16|32|64)?$")  # type suffix of a number in Rust or C
_SHAPE = re.compile(  # candle's last line, `shape=` of NumPy and of Rust's ndarray
    r"\s*(?:Tensor\[|,\s*(?:shape|size)=)[\[(](?P<sizes>[\d,\s]*)[\])](?:,\s*strides=\[[^\]]*\]|,[^\]\n]*\])?"
)
_NARROW = re.compile(r"\bb?float16\b")
_STORED = re.compile(r"(?:,\s*device='[^']*')?,\s*dtype=(?:torch\.)?(b?float16)\b")  # after a table of PyTorch or NumPy
_LABEL = re.compile(r"^\s*[A-Za-z_][\w .\[\]-]*[:=]\s*(?=[-+.\d])")
_TYPE = re.compile(r"(?:dtype[=:]?)?(?:torch\.|np\.)?(?:b?float(?:16|32|64)|b?f(?:16|32|64)|half|double)?")
EXPECTED = "a table as print() shows it, such as tensor([[0.1, ..., 0.2]]), or lines of numbers"


@dataclass(frozen=True)
class OutputTable:
    """An output as it was given.

    Attributes:
        values: an array, which is exact in its format; or nested lists of numbers (text keeps the printed digits), None or `"..."`.
        parts: for a part of a table, the `rows`, `positions`, `features` (`heads`, `queries`, `keys`, `states`) that its axes list.
        shape: the shape printed with the table, or None.
        stored: name of the format in which the numbers were stored, if they are printed or the array's dtype is wider; else empty.
            Of two half formats that are printed with a table or its parts, it is the coarser.
    """

    values: Any
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    stored: str = ""


def tables(text: str, file: str) -> list[tuple[str, OutputTable]]:
    """Return every table in a text with its name, as NumPy, PyTorch, candle and Rust print them, or lines of numbers.

    Raises:
        UsageError: there is no table, or a table contains something else than numbers or is not closed; with line and column.
        ValueError: there are too many numbers, as in `files.require_printed`.
    """
    require_printed(max(text.count(","), text.count("["), text.count("\n")))
    named: list[tuple[str, OutputTable]] = []
    at = 0
    while (start := text.find("[", at)) >= 0:
        if not _is_table(text, start):
            at = _BRACKETS.match(text, start).end()  # type: ignore[union-attr]  # there is one
            continue
        name = _name(text[max(at, start - _BEFORE) : start])
        tree, at, formats = _bracket(text, start, file)
        stated = _SHAPE.match(text, at)
        at = stated.end() if stated else at
        if stored := _STORED.match(text, at):
            formats.add(stored[1])
        coarsest = max(formats, key=lambda name: FORMATS[name].unit_roundoff, default="")
        shape = tuple(int(size) for size in stated["sizes"].replace(",", " ").split()) if stated else None
        named.append((name, OutputTable(tree, shape=shape, stored=coarsest)))
        if len(named) > _TABLES:
            raise UsageError(f"{file} has more than {_TABLES} tables; expected one for each output")
    if named:
        return named
    lines = _lines(text, file)
    if not lines:
        raise UsageError(f"{file} holds no table; expected {EXPECTED}")
    return [("", OutputTable(lines[0] if len(lines) == 1 else lines))]


def _is_table(text: str, start: int) -> bool:
    """Return whether a bracket opens a table: it is not an index (`x[0]`), and its first word is a number or an ellipsis."""
    is_index = start > 0 and (text[start - 1].isalnum() or text[start - 1] in "_)]")
    return not is_index and _FIRST.match(text, start) is not None


def _name(before: str) -> str:
    """Return the name before a bracket, as in `last_hidden_state=tensor(`, `embedding: ` or `'embedding': `, or an empty string."""
    before = before.rstrip()
    if before.endswith("("):
        before = before[:-1].rstrip(_WORD).rstrip()
    if not before.endswith(("=", ":")):
        return ""
    before = before[:-1].rstrip().rstrip("'\"")
    return before[len(before.rstrip(_WORD)) :].lstrip(string.digits + ".")


def _lines(text: str, file: str) -> list[Any]:
    """Return the numbers of each line without label (`embedding 0:`) and type, or its ellipsis; comments are skipped."""
    found: list[Any] = []
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = [] if line.startswith(("#", "```")) else _LABEL.sub("", line, count=1).replace(",", " ").replace(";", " ").split()
        require_printed(count := count + len(words))
        words = [_TYPED.sub("", word) for word in words if not _TYPE.fullmatch(word)]
        wrong = [word for word in words if word not in ELLIPSES and not _LIKE_A_NUMBER.match(word)]
        if wrong:
            raise UsageError(f"{file}, line {number}: {wrong[0]!r} is no number; expected {EXPECTED}")
        if len(words) == 1 and words[0] in ELLIPSES:
            found.append(words[0])
        elif words:
            found.append([word if word in ELLIPSES else PrintedNumber(word) for word in words])
    return found


def _bracket(text: str, start: int, file: str) -> tuple[Any, int, set[str]]:
    """Return the nested lists of the bracket that opens at `start`, the index of its end, and the half formats named in it."""
    open_lists: list[list[Any]] = []
    formats: set[str] = set()
    at, count = start, 0
    while True:
        token = _TOKEN.match(text, at)
        if token is None:
            raise UsageError(f"{file}: the bracket that opens at {_where(text, start)} is not closed; is the table cut short?")
        at = token.end()
        if token["open"]:
            open_lists.append([])
            if len(open_lists) > _AXES:
                raise UsageError(f"{file}: {_AXES} brackets inside each other at {_where(text, start)}; expected {EXPECTED}")
        elif token["around"]:
            formats.update(_NARROW.findall(token["around"]))
        elif token["gap"]:
            open_lists[-1].append("...")
        elif token["number"]:
            if not _LIKE_A_NUMBER.match(token["number"]):
                raise UsageError(
                    f"{file}, {_where(text, token.start('number'))}: {token['number']!r} is no number; expected {EXPECTED}"
                )
            require_printed(count := count + 1)
            open_lists[-1].append(PrintedNumber(_TYPED.sub("", token["number"])))
        elif token["close"]:
            done = open_lists.pop()
            if not open_lists:
                return done, at, formats
            open_lists[-1].append(done)


def _where(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"


def _by_axis(tree: Any) -> list[list[Any]]:
    """Return the lists of each axis of a tree."""
    axes, level = [], [tree]
    while lists := [part for part in level if isinstance(part, list | tuple)]:
        axes.append(lists)
        level = [element for part in lists for element in part]
    return axes


def depth(tree: Any) -> int:
    """Return the number of axes of a tree."""
    return tree.ndim if isinstance(tree, np.ndarray) else len(_by_axis(tree))


def described(tree: Any) -> str:
    """Return the sizes of a tree, as `2 × 384`, or `2 × (5 to 9) × 384` if lists of one axis differ; `+` marks an ellipsis."""
    if isinstance(tree, np.ndarray):
        return " × ".join(map(str, tree.shape)) or "one number"
    axes = []
    for lists in _by_axis(tree):
        sizes = [sum(not is_ellipsis(part) for part in parts) for parts in lists]
        least, most, gaps = min(sizes), max(sizes), any(is_ellipsis(part) for parts in lists for part in parts)
        axes.append((f"({least} to {most})" if least < most else str(most)) + "+" * gaps)
    return " × ".join(axes) or "one number"


def is_ellipsis(part: Any) -> bool:
    """Return whether a part of a tree stands for omitted parts."""
    return isinstance(part, str) and part in ELLIPSES
