"""Surroundings of a runner in a worker: read and set there, compared here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from conformance.checks.search.surroundings import ModuleState, Surroundings
from conformance.errors import CandidateEnded
from conformance.isolation.messages import Enter, Leave, Look, Tensors


class RemoteSurroundings(Surroundings):
    """Those of one runner.

    Args:
        found: the plain data with which a question is answered, of the form that is given.
        done: asks what is answered with `Done`.
        pairs: what is streamed after that.
    """

    def __init__(
        self,
        found: Callable[[object, Any], Any],
        done: Callable[[object], object],
        pairs: Callable[[], Iterator[tuple[Any, Any]]],
    ) -> None:
        self._found, self._done, self._pairs = found, done, pairs

    def module(self) -> ModuleState | None:
        """See `Surroundings`."""
        state: ModuleState | None = self._found(Look("module"), ModuleState | None)
        return state

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """See `Surroundings`."""
        self._done(Tensors(tuple(names)))
        for name, (found, value) in zip(names, self._pairs(), strict=False):
            if found != name:
                raise CandidateEnded(f"its process sends {found!r:.100}, where the tensor {name!r:.100} is asked for")
            yield name, value

    def save(self, path: Path) -> None:
        """See `Surroundings`."""
        self._found(Look("save", (path,)), None)

    def load(self, path: Path) -> None:
        """See `Surroundings`."""
        self._found(Look("load", (path,)), None)

    def settings(self) -> Mapping[str, str]:
        """See `Surroundings`."""
        settings: Mapping[str, str] = self._found(Look("settings"), dict[str, str])
        return settings

    def usual(self) -> AbstractContextManager[object]:
        """See `Surroundings`."""
        return self._inside(Enter("usual"))

    def one_thread(self) -> AbstractContextManager[object]:
        """See `Surroundings`."""
        return self._inside(Enter("one_thread"))

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """See `Surroundings`."""
        return self._inside(Enter("seeded", (seed,)))

    @contextmanager
    def _inside(self, question: Enter) -> Iterator[None]:
        self._done(question)
        try:
            yield
        finally:
            self._done(Leave())
