"""Optional features beyond the BERT of the paper; a candidate is tested for one only if it lists it in its `features`.

A candidate that ignores a number in the config is wrong. In contrast, a candidate that is not a decoder, or that has no relative
positions, is a different network.
"""

from collections.abc import Iterable

from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

FEATURES = {
    "relative_key": "relative positions, of queries",
    "relative_key_query": "relative positions, of queries and keys",
    "is_decoder": "attention to earlier tokens alone",
    "add_cross_attention": "attention to an encoder's states",
    "pruned_heads": "layers with fewer heads",
    "position_ids": "position ids given with the batch",
    "attention_mask_3d": "a mask for each query",
    "dense": "dense layers behind the pooling of a sentence embedding",
}


def features_of(a: Architecture, batches: Iterable[Batch] = ()) -> list[str]:
    """Return the features that an architecture and batches require, in the order of `FEATURES`.

    Example:
        >>> features_of(load_golden("decoder").checkpoint.architecture)
        ['is_decoder']
    """
    found = {a.position_embedding_type} | {name for name in FEATURES if getattr(a, name, False)}
    for batch in batches:
        found |= {"position_ids"} if batch.position_ids is not None else set()
        found |= {"attention_mask_3d"} if batch.attention_mask is not None and batch.attention_mask.ndim == 3 else set()
    return [name for name in FEATURES if name in found]
