"""Which keys a query may attend to."""

import numpy as np
import numpy.typing as npt

from conformance.model.activation import Activation
from conformance.model.batch import Batch


def attended_keys(row: Activation, batch: Batch) -> npt.NDArray[np.bool_]:
    """Of an activation over queries and keys: (B, Q, K), Q = 1 where it is the same for every query.

    Those that the mask lets through; where the activation is causal, of these the query itself and what is before it. Of attention
    to an encoder's states those of its own mask.

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
