"""Reads dialogues: the Cornell Movie-Dialogs Corpus (Danescu-Niculescu-Mizil and Lee 2011), or plain text.

`movie_lines.txt` has a line per utterance, in any order; `movie_conversations.txt` a line per conversation, with the identifiers of
its utterances. Fields are separated by ` +++$+++ `, the encoding is ISO-8859-1. In plain text (`*.txt`, UTF-8) a line is an
utterance, and a blank line ends a conversation.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance import UsageError

LINES, CONVERSATIONS = "movie_lines.txt", "movie_conversations.txt"
OWN = Path(__file__).parent / "films"  # written for this package
_SEPARATOR = " +++$+++ "
_IDENTIFIERS = re.compile(r"\[\s*('L\d+'(\s*,\s*'L\d+')*)\s*\]")
_NAMED = 3  # malformed lines that are shown, of each kind

Conversation = list[str]


@dataclass
class Skipped:
    """What was left out of a corpus: how many lines of each kind, and the first of them."""

    counts: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        if self.counts[kind] <= _NAMED:
            self.places.append(f"{where}: {kind}")


class Dialogues:
    """The conversations of a folder, which can be read again and again, and are never all in memory.

    Raises:
        UsageError: the folder has neither the files of the Cornell corpus nor plain text.
    """

    def __init__(self, folder: Path, index: Path) -> None:
        self.folder, self.skipped = folder, Skipped()
        self._texts = sorted(path for path in folder.glob("*.txt") if path.name not in (LINES, CONVERSATIONS))
        self._index: sqlite3.Connection | None = None
        if (folder / LINES).is_file() and (folder / CONVERSATIONS).is_file():
            self._index = self._indexed(index)
        elif not self._texts or (folder / LINES).is_file() or (folder / CONVERSATIONS).is_file():
            raise UsageError(f"{folder} has neither {LINES} and {CONVERSATIONS}, nor plain text in other .txt files")

    def __iter__(self) -> Iterator[Conversation]:
        """Each conversation of two utterances or more; what is left out is counted anew."""
        self.skipped.counts.clear()
        self.skipped.places.clear()
        for found in self._plain() if self._index is None else self._cornell(self._index):
            if len(found) > 1:
                yield found

    def _indexed(self, path: Path) -> sqlite3.Connection:
        """Utterances by identifier, on disk."""
        path.unlink(missing_ok=True)
        index = sqlite3.connect(path, check_same_thread=False)  # `tokenizers` iterates in a thread of its own
        index.execute("CREATE TABLE utterance (id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID")
        with index:
            index.executemany("INSERT OR IGNORE INTO utterance VALUES (?, ?)", self._utterances())
        return index

    def _utterances(self) -> Iterator[tuple[str, str]]:
        with open(self.folder / LINES, encoding="iso-8859-1", newline="\n") as file:
            for line in file:
                fields = line.split(_SEPARATOR, 4)
                if len(fields) == 5:
                    yield fields[0], " ".join(fields[4].split())

    def _cornell(self, index: sqlite3.Connection) -> Iterator[Conversation]:
        self._count_malformed_lines(index)
        with open(self.folder / CONVERSATIONS, encoding="iso-8859-1", newline="\n") as file:
            for number, line in enumerate(file, 1):
                where, fields = f"{CONVERSATIONS}:{number}", line.strip().split(_SEPARATOR)
                listed = _IDENTIFIERS.fullmatch(fields[3]) if len(fields) == 4 else None
                if listed is None:
                    self.skipped.add("expected four fields, the last a list of identifiers such as ['L1', 'L2']", where)
                    continue
                yield from self._unbroken(index, re.findall(r"L\d+", listed[1]), where)

    def _unbroken(self, index: sqlite3.Connection, identifiers: list[str], where: str) -> Iterator[Conversation]:
        """The parts of a conversation between utterances that are missing or empty: what they separate is not consecutive."""
        part: Conversation = []
        for identifier in identifiers:
            row = index.execute("SELECT text FROM utterance WHERE id = ?", (identifier,)).fetchone()
            if row and row[0]:
                part.append(row[0])
                continue
            self.skipped.add("an utterance that is empty" if row else "an utterance that is not there", f"{where}, {identifier}")
            yield part
            part = []
        yield part

    def _count_malformed_lines(self, index: sqlite3.Connection) -> None:
        seen = 0
        with open(self.folder / LINES, encoding="iso-8859-1", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.count(_SEPARATOR) < 4:
                    self.skipped.add("expected five fields", f"{LINES}:{number}")
                else:
                    seen += 1
        repeated = seen - int(index.execute("SELECT count(*) FROM utterance").fetchone()[0])
        if repeated:
            self.skipped.counts["an identifier that is there already; the first counts"] = repeated

    def _plain(self) -> Iterator[Conversation]:
        for path in self._texts:
            part: Conversation = []
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    text = " ".join(line.split())
                    if text:
                        part.append(text)
                    else:
                        yield part
                        part = []
            yield part
