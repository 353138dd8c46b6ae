"""Tables as PyTorch and NumPy print them: brackets, numbers, ellipses, with a name before them or without."""

import re
from typing import Any

from conformance.diagnosis.printed import ELLIPSES, PrintedNumber
from conformance.errors import UsageError

# `last_hidden_state=tensor(` or `embedding: array(` or nothing, before a bracket; looked for in so many characters before it.
_BEFORE = 300
_START = re.compile(r"(?:\b(?P<name>[A-Za-z_][\w.]*)\s*[=:]\s*)?(?:\b[A-Za-z_][\w.]*\(\s*)?$")
_AXES = 16  # more brackets inside each other than any table has
_TOKEN = re.compile(r"\s*(?:(?P<open>\[)|(?P<close>\])|(?P<gap>\.\.\.|…)|(?P<comma>,)|(?P<number>[^\s,\[\]]+))")
_LIKE_A_NUMBER = re.compile(r"[-+]?(?:\d|\.\d|nan|inf)", re.IGNORECASE)
EXPECTED = "a table as print() shows it, such as tensor([[0.1, ..., 0.2]]), or lines of numbers"


def tables(text: str, file: str) -> list[tuple[str, Any]]:
    """Every table in a text, with its name or an empty one, as nested lists of `PrintedNumber`s and ellipses.

    Raises:
        UsageError: there is none, or one has what is no number, or does not end; with line and column.
    """
    found: list[tuple[str, Any]] = []
    at = 0
    while (start := text.find("[", at)) >= 0:
        before = _START.search(text[max(at, start - _BEFORE) : start])
        tree, at = _bracket(text, start, file)
        found.append((before["name"] or "" if before else "", tree))
    if found:
        return found
    rows = [line.replace(",", " ").replace(";", " ").split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    if not rows:
        raise UsageError(f"{file} holds no table; expected {EXPECTED}")
    for number, row in enumerate(rows, 1):
        wrong = [word for word in row if word not in ELLIPSES and not _LIKE_A_NUMBER.match(word)]
        if wrong:
            raise UsageError(f"{file}, line {number}: {wrong[0]!r} is no number; expected {EXPECTED}")
    lines = [
        row[0] if len(row) == 1 and row[0] in ELLIPSES else [w if w in ELLIPSES else PrintedNumber(w) for w in row] for row in rows
    ]
    return [("", lines[0] if len(lines) == 1 else lines)]


def _bracket(text: str, start: int, file: str) -> tuple[Any, int]:
    """The bracket that opens at `start`, and where it ends."""
    open_lists: list[list[Any]] = []
    at = start
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
            open_lists[-1].append(PrintedNumber(token["number"]))
        elif token["close"]:
            done = open_lists.pop()
            if not open_lists:
                return done, at
            open_lists[-1].append(done)


def _where(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
