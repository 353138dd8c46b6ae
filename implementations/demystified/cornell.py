"""Reader for the Cornell Movie-Dialogs Corpus (Danescu-Niculescu-Mizil and Lee 2011).

`movie_lines.txt` has one line per utterance, in any order; `movie_conversations.txt` has one line per conversation, with the
identifiers of its utterances. Fields are separated by ` +++$+++ `, the encoding is ISO-8859-1.
"""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from .conversations import Conversation, Skipped

LINES, CONVERSATIONS = "movie_lines.txt", "movie_conversations.txt"
_SEPARATOR = " +++$+++ "
_IDENTIFIERS = re.compile(r"\[\s*('L\d+'(\s*,\s*'L\d+')*)\s*\]")


class Cornell:
    """The corpus in a folder; utterances are indexed by identifier in a table on disk."""

    def __init__(self, folder: Path, index: Path, skipped: Skipped) -> None:
        self.folder, self.skipped = folder, skipped
        self._index = self._indexed(index)

    def __iter__(self) -> Iterator[Conversation]:
        """Yield each conversation, split where utterances are missing."""
        self._count_malformed_lines()
        with open(self.folder / CONVERSATIONS, encoding="iso-8859-1", newline="\n") as file:
            for number, line in enumerate(file, 1):
                where, fields = f"{CONVERSATIONS}:{number}", line.strip().split(_SEPARATOR)
                listed = _IDENTIFIERS.fullmatch(fields[3]) if len(fields) == 4 else None
                if listed is None:
                    self.skipped.add("expected four fields, the last a list of identifiers such as ['L1', 'L2']", where)
                    continue
                yield from self._unbroken(re.findall(r"L\d+", listed[1]), where)

    def _indexed(self, path: Path) -> sqlite3.Connection:
        """Return a table on disk of utterances by identifier."""
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

    def _unbroken(self, identifiers: list[str], where: str) -> Iterator[Conversation]:
        """Yield the parts of a conversation between missing or empty utterances, across which utterances are not consecutive."""
        part: Conversation = []
        for identifier in identifiers:
            row = self._index.execute("SELECT text FROM utterance WHERE id = ?", (identifier,)).fetchone()
            if row and row[0]:
                part.append(row[0])
                continue
            self.skipped.add("an utterance that is empty" if row else "an utterance that is not there", f"{where}, {identifier}")
            yield part
            part = []
        yield part

    def _count_malformed_lines(self) -> None:
        seen = 0
        with open(self.folder / LINES, encoding="iso-8859-1", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.count(_SEPARATOR) < 4:
                    self.skipped.add("expected five fields", f"{LINES}:{number}")
                else:
                    seen += 1
        repeated = seen - int(self._index.execute("SELECT count(*) FROM utterance").fetchone()[0])
        if repeated:
            self.skipped.counts["an identifier that is there already; the first counts"] = repeated
