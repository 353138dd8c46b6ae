"""Surroundings of a runner in a worker: read and set there, compared here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from conformance.checks.search.surroundings import ModuleState, Surroundings
from conformance.errors import CandidateEnded
from conformance.isolation.serve import CandidateWork


class RemoteSurroundings(Surroundings):
    """Those of one runner.

    Args:
        found: of a form, a method of `CandidateWork` and its arguments, the plain data that it gives.
        done: asks a method that gives none.
        pairs: what is streamed after that.
    """

    def __init__(
        self,
        found: Callable[..., Any],
        done: Callable[..., object],
        pairs: Callable[[], Iterator[tuple[Any, Any]]],
    ) -> None:
        self._found, self._done, self._pairs = found, done, pairs

    def module(self) -> ModuleState | None:
        """See `Surroundings`."""
        state: ModuleState | None = self._found(ModuleState | None, CandidateWork.look, "module")
        return state

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """See `Surroundings`."""
        self._done(CandidateWork.tensors, tuple(names))
        for name, (found, value) in zip(names, self._pairs(), strict=False):
            if found != name:
                raise CandidateEnded(f"its process sends {found!r:.100}, where the tensor {name!r:.100} is asked for")
            yield name, value

    def save(self, path: Path) -> None:
        """See `Surroundings`."""
        self._found(None, CandidateWork.look, "save", path)

    def load(self, path: Path) -> None:
        """See `Surroundings`."""
        self._found(None, CandidateWork.look, "load", path)

    def settings(self) -> Mapping[str, str]:
        """See `Surroundings`."""
        settings: Mapping[str, str] = self._found(dict[str, str], CandidateWork.look, "settings")
        return settings

    def usual(self) -> AbstractContextManager[object]:
        """See `Surroundings`."""
        return self._inside("usual")

    def one_thread(self) -> AbstractContextManager[object]:
        """See `Surroundings`."""
        return self._inside("one_thread")

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """See `Surroundings`."""
        return self._inside("seeded", seed)

    @contextmanager
    def _inside(self, method: str, *arguments: object) -> Iterator[None]:
        self._done(CandidateWork.enter, method, *arguments)
        try:
            yield
        finally:
            self._done(CandidateWork.leave)
