"""The keys that a query may attend to."""

import numpy as np

from conformance.model.activation import Activation
from conformance.model.batch import Batch
from conformance.numerics.formats import Mask


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
