"""Rows of the table of activations; each describes one tensor of the forward or backward pass.

`attended_keys` are the keys that a query may attend to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from conformance.model.batch import Batch
from conformance.numerics.formats import Mask

HIDDEN = ("batch", "position", "feature")
ATTENTION = ("batch", "head", "query", "key")
DISTANCES = ("batch", "query", "key", "feature")
STATES = ("batch", "state", "feature")  # encoder hidden states, to which a decoder attends
CROSS_ATTENTION = ("batch", "head", "query", "state key")
STATES_NAME = "encoder_hidden_states"
SENTENCE = ("batch", "feature")
SCALAR: tuple[str, ...] = ()


@dataclass(frozen=True)
class Activation:
    """One row of the table of activations.

    Attributes:
        name: Hugging Face's module path, or the additional path of a tensor that has no module.
        kind: the equation that computes the activation; a key of `conformance.oracle.EQUATIONS`.
        parents: names of the activations that it is computed from, in the order of the equation.
        parameters: maps the role of each parameter (`weight`, `bias`) to Hugging Face's parameter name.
        axes: name of each axis.
        width: length of the last axis; 0 if it depends on the batch.
        equation: the formula, for display.
        exact: whether any difference at all is a failure (table look-ups, copies).
        layer: index of the encoder layer that the activation belongs to, or None.
        height: length of the axis `row`, which the gradient of a matrix has.
        is_internal: whether an implementation need not form the activation, so that it is not reported as missing.
        dropout: in training mode, name of the activation whose random mask the equation reads; empty if there is none.
        causal: whether a query attends to no later key.
        heads: length of the axis `head` if the layer has fewer heads than `num_attention_heads`; otherwise 0.
        reads_all_tokens: whether one vector per sequence depends on all tokens that are not padding, not on the first alone.
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
        """Whether the activation does not depend on the row of the batch, so that a candidate may compute it once for all rows."""
        return self.kind in ("position_lookup", "sinusoids", "distance_lookup")

    def shape(self, batch_size: int, length: int, heads: int, states: int = 0) -> tuple[int, ...]:
        """Return the shape of the activation.

        Args:
            batch_size: number of rows of the batch.
            length: number of tokens per row.
            heads: number of attention heads, unless this activation has its own number.
            states: number of encoder states per row.
        """
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
        """Return the index of the activation's part for the given rows of the batch and the first `length` tokens of each row."""
        parts = {"batch": rows, **dict.fromkeys(("position", "query", "key"), slice(length))}
        return tuple(parts.get(axis, slice(None)) for axis in self.axes)


def affine(path: str) -> dict[str, str]:
    """Return the roles and names of the weight and bias of the module at `path`."""
    return {"weight": f"{path}.weight", "bias": f"{path}.bias"}


def attended_keys(row: Activation, batch: Batch) -> Mask:
    """Return which keys each query may attend to, for an activation over queries and keys.

    These are the keys that the mask allows; if the activation is causal, only those up to the query's own position. For
    cross-attention they are the encoder states that `encoder_attention_mask` allows.

    Returns:
        A boolean array (B, Q, K), where Q = 1 if the keys are the same for all queries.

    Example:
        >>> from conformance.model.activations import ATTENTION
        >>> row = Activation("probs", "probs", (), ATTENTION, 0, "", causal=True)
        >>> attended_keys(row, Batch(np.array([[7, 8, 9]]), attention_mask=np.array([[1, 1, 0]]))).astype(int).tolist()
        [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]
    """
    if "state key" in row.axes:
        return batch.states_mask[:, None, :]
    keys = batch.keys
    return keys & np.tri(batch.length, dtype=np.bool_) if row.causal else keys
