"""Tables as PyTorch and NumPy print them: brackets, numbers, ellipses, with a name before them or without."""

import re
import string
from typing import Any

from conformance.diagnosis.printed import ELLIPSES, PrintedNumber
from conformance.errors import UsageError
from conformance.files import require_printed

_BEFORE = 300  # characters before a bracket in which a table's name is looked for
_WORD = string.ascii_letters + string.digits + "_."
_TABLES = 2**16  # more than a BERT of a thousand layers has activations
_AXES = 16  # more brackets inside each other than any table has
_TOKEN = re.compile(r"\s*(?:(?P<open>\[)|(?P<close>\])|(?P<gap>\.\.\.|…)|(?P<comma>,)|(?P<number>[^\s,\[\]]+))")
_LIKE_A_NUMBER = re.compile(r"[-+]?(?:\d|\.\d|nan|inf)", re.IGNORECASE)
EXPECTED = "a table as print() shows it, such as tensor([[0.1, ..., 0.2]]), or lines of numbers"


def tables(text: str, file: str) -> list[tuple[str, Any]]:
    """Every table in a text, with its name or an empty one, as nested lists of `PrintedNumber`s and ellipses.

    Raises:
        UsageError: there is none, or one has what is no number, or does not end; with line and column.
        ValueError: there are too many numbers, as in `files.require_printed`.
    """
    require_printed(max(text.count(","), text.count("["), text.count("\n")))
    found: list[tuple[str, Any]] = []
    at = 0
    while (start := text.find("[", at)) >= 0:
        name = _name(text[max(at, start - _BEFORE) : start])
        tree, at = _bracket(text, start, file)
        found.append((name, tree))
        if len(found) > _TABLES:
            raise UsageError(f"{file} has more than {_TABLES} tables; expected one for each output")
    if found:
        return found
    lines = _lines(text, file)
    if not lines:
        raise UsageError(f"{file} holds no table; expected {EXPECTED}")
    return [("", lines[0] if len(lines) == 1 else lines)]


def _name(before: str) -> str:
    """The name in `last_hidden_state=tensor(` or `embedding: `, which stands before a bracket; empty where there is none."""
    before = before.rstrip()
    if before.endswith("("):
        before = before[:-1].rstrip(_WORD).rstrip()
    if not before.endswith(("=", ":")):
        return ""
    before = before[:-1].rstrip()
    return before[len(before.rstrip(_WORD)) :].lstrip(string.digits + ".")


def _lines(text: str, file: str) -> list[Any]:
    """Each line that has numbers and is no comment: a list of them, or an ellipsis."""
    found: list[Any] = []
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = [] if line.startswith("#") else line.replace(",", " ").replace(";", " ").split()
        require_printed(count := count + len(words))
        wrong = [word for word in words if word not in ELLIPSES and not _LIKE_A_NUMBER.match(word)]
        if wrong:
            raise UsageError(f"{file}, line {number}: {wrong[0]!r} is no number; expected {EXPECTED}")
        if len(words) == 1 and words[0] in ELLIPSES:
            found.append(words[0])
        elif words:
            found.append([word if word in ELLIPSES else PrintedNumber(word) for word in words])
    return found


def _bracket(text: str, start: int, file: str) -> tuple[Any, int]:
    """The bracket that opens at `start`, and where it ends."""
    open_lists: list[list[Any]] = []
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
        elif token["gap"]:
            open_lists[-1].append("...")
        elif token["number"]:
            if not _LIKE_A_NUMBER.match(token["number"]):
                raise UsageError(
                    f"{file}, {_where(text, token.start('number'))}: {token['number']!r} is no number; expected {EXPECTED}"
                )
            require_printed(count := count + 1)
            open_lists[-1].append(PrintedNumber(token["number"]))
        elif token["close"]:
            done = open_lists.pop()
            if not open_lists:
                return done, at
            open_lists[-1].append(done)


def _where(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
