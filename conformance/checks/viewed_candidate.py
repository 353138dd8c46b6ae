"""A candidate whose activations a function filters or inspects, for the checks that judge a part of a candidate's activations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.candidates.registry import supports_of
from conformance.candidates.stream import Stream, pairs
from conformance.checks.contract import named_features
from conformance.model.activations import table

StreamView = Callable[[Any, Stream], Stream]


@dataclass(frozen=True)
class ViewedCandidate:
    """A candidate whose stream a function filters or inspects.

    Attributes:
        candidate: the candidate.
        view_of: function of (checkpoint, device, dtype) that returns a function of a batch and the stream of its activations.
    """

    candidate: Any
    view_of: Callable[[Any, str, str], StreamView]

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the candidate names."""
        return named_features(self.candidate)

    def supports(self, architecture: Any, device: str, dtype: str) -> str | None:
        """Return the reason why the candidate does not support a case, or None."""
        supports = supports_of(self.candidate)
        return supports(architecture, device, dtype) if supports else None

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        """Return the candidate's runner, whose activations pass through the function."""
        view, runner = self.view_of(checkpoint, device, dtype), self.candidate.prepare(checkpoint, device, dtype)
        return lambda batch: view(batch, pairs(runner(batch), table(checkpoint.architecture)))


def without_view(implementation: object) -> object:
    """Return the candidate that is viewed; an implementation that is no `ViewedCandidate` is returned as it is.

    Where a candidate runs, and on which machine its activations were computed, does not depend on a view.
    """
    return implementation.candidate if isinstance(implementation, ViewedCandidate) else implementation
