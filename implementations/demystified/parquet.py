"""Reader for dialogues in Parquet files, row by row through `datasets`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance import DependencyMissingError, UsageError

from .conversations import Conversation, divided

INSTALL = "pip install 'bert-conformance[datasets]'"


class Parquet:
    """The conversations in Parquet files with equal columns, of which one is read.

    This is the only column of lists of strings, where each list is a conversation; or, without such a column, the only column of
    strings, where each string is an utterance and a blank one ends a conversation.

    Raises:
        DependencyMissingError: `datasets` is not installed.
        UsageError: the files cannot be read, or there is no such column, or several.
    """

    def __init__(self, paths: list[Path]) -> None:
        try:
            import datasets
        except ImportError as error:
            raise DependencyMissingError(f"{paths[0]} is read through datasets, which is not installed: {INSTALL}") from error
        self.folder = paths[0].parent
        with _readable(self.folder):
            files = [str(path) for path in paths]
            rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        text = datasets.Value("string")
        features = rows.features
        self._lists = [name for name, kind in features.items() if kind == datasets.List(text)]
        columns = self._lists or [name for name, kind in features.items() if kind == text]
        if len(columns) != 1:
            kinds = ", ".join(f"{name}: {kind}" for name, kind in features.items())
            raise UsageError(f"expected in {self.folder} one column of lists of strings, or else one of strings; found {kinds}")
        self._column = columns[0]
        self._rows = rows.select_columns(self._column)

    def __iter__(self) -> Iterator[Conversation]:
        values = self._values()
        if not self._lists:
            yield from divided(values)
            return
        for conversation in values:
            yield from divided(text or "" for text in conversation)

    def _values(self) -> Iterator[Any]:
        """Yield the column's values, row by row, with an empty string for null."""
        with _readable(self.folder):
            for row in self._rows:
                yield row[self._column] or ""


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Raise `UsageError` for any exception, because `datasets` passes on the exceptions of the libraries it uses."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"{folder} has Parquet that cannot be read: {error}") from error
