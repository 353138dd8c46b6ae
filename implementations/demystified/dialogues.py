"""Reader for the dialogues in a folder: the Cornell Movie-Dialogs Corpus (Danescu-Niculescu-Mizil and Lee 2011), or plain text.

In plain text (`*.txt`, UTF-8) each line is an utterance, and a blank line ends a conversation. Of the Cornell corpus,
`movie_lines.txt` has one line per utterance, in any order; `movie_conversations.txt` has one line per conversation, with the
identifiers of its utterances. Fields are separated by ` +++$+++ `, the encoding is ISO-8859-1.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance import UsageError

OWN = Path(__file__).parent / "films"  # written for this package
LINES, CONVERSATIONS = "movie_lines.txt", "movie_conversations.txt"
_SEPARATOR = " +++$+++ "
_IDENTIFIERS = re.compile(r"\[\s*('L\d+'(\s*,\s*'L\d+')*)\s*\]")
_NAMED = 3  # maximum number of malformed lines shown for each kind

Conversation = list[str]


@dataclass
class Skipped:
    """What was skipped in a corpus.

    Attributes:
        counts: number of lines of each kind.
        places: descriptions of the first lines of each kind.
    """

    counts: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str) -> None:
        """Count one line of a kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= _NAMED:
            self.places.append(f"{where}: {kind}")


def dialogues(folder: Path) -> tuple[list[Conversation], Skipped]:
    """Return the conversations of at least two utterances in a folder, and what was skipped.

    Raises:
        UsageError: the folder has no dialogues, or only one of the Cornell corpus's files.
    """
    skipped = Skipped()
    cornell = [name for name in (LINES, CONVERSATIONS) if (folder / name).is_file()]
    texts = sorted(path for path in folder.glob("*.txt") if path.name not in cornell)
    if len(cornell) == 1 or not (cornell or texts):
        raise UsageError(f"expected in {folder} either {LINES} and {CONVERSATIONS}, or other .txt files")
    found = _cornell(folder, skipped) if cornell else _plain(texts)
    return [conversation for conversation in found if len(conversation) > 1], skipped


def _plain(paths: Iterable[Path]) -> Iterator[Conversation]:
    """Yield the conversations in text files; a conversation does not extend over several files."""
    for path in paths:
        yield from _divided(path.read_text("utf-8", "replace").split("\n"))


def _divided(texts: Iterable[str]) -> Iterator[Conversation]:
    """Yield conversations of utterances with normalised white space; a blank text ends a conversation."""
    part: Conversation = []
    for text in texts:
        if utterance := " ".join(text.split()):
            part.append(utterance)
            continue
        yield part
        part = []
    yield part


def _cornell(folder: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of the Cornell corpus, split where utterances are missing or empty."""
    utterances = _utterances(folder, skipped)
    for where, line in _lines(folder, CONVERSATIONS):
        fields = line.strip().split(_SEPARATOR)
        listed = _IDENTIFIERS.fullmatch(fields[3]) if len(fields) == 4 else None
        if listed is None:
            skipped.add("expected four fields, the last a list of identifiers such as ['L1', 'L2']", where)
            continue
        identifiers = re.findall(r"L\d+", listed[1])
        for identifier in identifiers:
            if not utterances.get(identifier):
                what = "empty" if identifier in utterances else "not there"
                skipped.add(f"an utterance that is {what}", f"{where}, {identifier}")
        yield from _divided(utterances.get(identifier, "") for identifier in identifiers)


def _utterances(folder: Path, skipped: Skipped) -> dict[str, str]:
    """Return the utterances of the Cornell corpus by identifier."""
    found: dict[str, str] = {}
    for where, line in _lines(folder, LINES):
        fields = line.split(_SEPARATOR, 4)
        if len(fields) < 5:
            skipped.add("expected five fields", where)
        elif fields[0] in found:
            skipped.add("an identifier that is there already; the first counts", where)
        else:
            found[fields[0]] = " ".join(fields[4].split())
    return found


def _lines(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    with open(folder / name, encoding="iso-8859-1", newline="\n") as file:
        yield from ((f"{name}:{number}", line) for number, line in enumerate(file, 1))
