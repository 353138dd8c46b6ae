"""Remembered examples, those of each search apart: Hypothesis knows a test by its function, and ours is always the same one."""

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase


class NamespacedDatabase(ExampleDatabase):
    """A database within another, under keys of its own."""

    def __init__(self, inner: ExampleDatabase, key: str) -> None:
        """Keep what is saved here under `key`."""
        super().__init__()
        self._inner, self._key = inner, key.encode()

    def save(self, key: bytes, value: bytes) -> None:
        """Remember an example."""
        self._inner.save(key + self._key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """What is remembered."""
        return self._inner.fetch(key + self._key)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example."""
        self._inner.delete(key + self._key, value)


def namespaced(inner: ExampleDatabase | None, key: str) -> ExampleDatabase | None:
    """The database for one search; None where nothing is remembered."""
    return None if inner is None else NamespacedDatabase(inner, key)
