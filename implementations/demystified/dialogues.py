"""Reader for the dialogues in a folder: the Cornell corpus, plain text, or Parquet.

In plain text (`*.txt`, UTF-8) each line is an utterance, and a blank line ends a conversation.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from conformance import UsageError

from .conversations import Conversation, Skipped, divided
from .cornell import CONVERSATIONS, LINES, Cornell
from .parquet import Parquet

OWN = Path(__file__).parent / "films"  # written for this package


class Dialogues:
    """The conversations in a folder; they can be iterated repeatedly, and are never all in memory.

    Raises:
        UsageError: the folder has no dialogues, or several kinds of them.
        DependencyMissingError: the folder has Parquet files, and `datasets` is not installed.
    """

    def __init__(self, folder: Path, index: Path) -> None:
        self.skipped = Skipped()
        self._read = _reader(folder, index, self.skipped)

    def __iter__(self) -> Iterator[Conversation]:
        """Yield each conversation of at least two utterances; the count of skipped lines starts anew."""
        self.skipped.clear()
        return (found for found in self._read if len(found) > 1)


class PlainText:
    """The conversations in text files; a conversation does not extend over several files."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Conversation]:
        for path in self.paths:
            with open(path, encoding="utf-8", errors="replace") as file:
                yield from divided(file)


def _reader(folder: Path, index: Path, skipped: Skipped) -> Iterable[Conversation]:
    """Return the reader for the files in the folder."""
    cornell = [name for name in (LINES, CONVERSATIONS) if (folder / name).is_file()]
    texts = sorted(path for path in folder.glob("*.txt") if path.name not in cornell)
    tables = sorted(folder.glob("*.parquet"))
    if len(cornell) == 2:
        return Cornell(folder, index, skipped)
    if cornell or bool(texts) == bool(tables):
        raise UsageError(f"expected in {folder} either {LINES} and {CONVERSATIONS}, or other .txt files, or .parquet files")
    return PlainText(texts) if texts else Parquet(tables)
