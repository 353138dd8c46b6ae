"""Examples on which a law is tested. They consist of plain numbers, so that a results file can contain them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.errors import UsageError
from conformance.model.batch import Batch

Size = tuple[int, int]  # of a batch: rows, and tokens per row


def largest_sizes(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """Return the sizes that no other size reaches in both numbers, most rows first.

    Example:
        >>> largest_sizes([(1, 64), (6, 16), (6, 15)])
        ((6, 16), (1, 64))
    """
    found: list[Size] = []
    for size in sorted(set(sizes), reverse=True):
        if not found or size[1] > found[-1][1]:
            found.append(size)
    return tuple(found)


@dataclass(frozen=True)
class Example:
    """One batch, and how a law varies it.

    Attributes:
        batch: the inputs.
        variation: parameters of the variation by name: numbers, texts or lists of them.
    """

    batch: Batch
    variation: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the example as for JSON: the batch's arrays as nested lists under `batch`, and `variation`."""
        return {"batch": {k: v.tolist() for k, v in self.batch.arrays().items()}, "variation": dict(self.variation)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Example":
        """Return the example described by the result of `plain`; raises `UsageError` if it does not describe an example."""
        try:
            return cls(Batch.of(plain["batch"]), dict(plain.get("variation", {})))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"an example has a batch and may have a variation; found {plain!r:.200}") from error
