"""One row of the table of activations: a tensor of the forward or backward pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field

HIDDEN = ("batch", "position", "feature")
ATTENTION = ("batch", "head", "query", "key")
DISTANCES = ("batch", "query", "key", "feature")
STATES = ("batch", "state", "feature")  # of an encoder, to which a decoder attends
CROSS_ATTENTION = ("batch", "head", "query", "state key")
SENTENCE = ("batch", "feature")
SCALAR: tuple[str, ...] = ()


@dataclass(frozen=True)
class Activation:
    """One row of the table.

    Attributes:
        name: Hugging Face's module path, or the extra path of a tensor that has no module.
        kind: which equation computes it; key of `conformance.oracle.EQUATIONS`.
        parents: the activations that it is computed from, in the order of its equation.
        parameters: role (`weight`, `bias`) to Hugging Face's parameter name.
        axes: what each axis counts.
        width: length of the last axis; 0 where the batch decides it.
        equation: the formula, for people.
        exact: whether any difference at all is a failure (a table look-up, a copy).
        layer: the encoder layer that it belongs to, or None.
        height: length of an axis `row`, of the gradient of a matrix.
        is_internal: whether no implementation has to form it, so that it is not missed.
        dropout: the activation whose random mask its equation reads, in training mode; empty where it reads none.
        causal: whether queries attend to no later key.
        heads: of an axis `head`, how many, where the layer has fewer than the architecture says; else 0.
        reads_all_tokens: of a sentence, whether it is read off all of its tokens that are not padding, and not the first alone.
    """

    name: str
    kind: str
    parents: tuple[str, ...]
    axes: tuple[str, ...]
    width: int
    equation: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    layer: int | None = None
    height: int = 0
    is_internal: bool = False
    dropout: str = ""
    causal: bool = False
    heads: int = 0
    reads_all_tokens: bool = False

    @property
    def is_same_for_all_rows(self) -> bool:
        """Whether it does not depend on the row of the batch, so that a candidate may have it once."""
        return self.kind in ("position_lookup", "sinusoids", "distance_lookup")

    def shape(self, batch_size: int, length: int, heads: int, states: int = 0) -> tuple[int, ...]:
        """Its shape for a batch of `batch_size` rows of `length` tokens, and as many of an encoder's states."""
        sizes = {
            "batch": batch_size,
            "position": length,
            "head": self.heads or heads,
            "query": length,
            "key": length,
            "row": self.height,
        }
        sizes |= {"state": states, "state key": states}
        return tuple(sizes.get(axis, self.width) for axis in self.axes)

    def cut(self, rows: slice, length: int | None = None) -> tuple[slice, ...]:
        """The index of its part for some rows of the batch, and the first `length` tokens of each."""
        parts = {"batch": rows, **dict.fromkeys(("position", "query", "key"), slice(length))}
        return tuple(parts.get(axis, slice(None)) for axis in self.axes)


def affine(path: str) -> dict[str, str]:
    """The weight and bias of the module at `path`."""
    return {"weight": f"{path}.weight", "bias": f"{path}.bias"}
