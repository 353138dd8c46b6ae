"""The network and the batch on which an unknown module is looked at: all sizes differ, so that a shape says what a tensor is."""

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import SEED
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

# Modules that take no intermediate size have four times the hidden size (Devlin et al. 2019, section 3).
# B, S, h, d, L, P, V and the multiples of H in fused products (2 H, 3 H, 4 H) are all different.
PROBE = Architecture(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=17,
    num_labels=7,
    heads=("masked_lm", "next_sentence", "classification"),
)
_MASKS = ("11111111111", "11111111111", "11111110000", "00111111111", "11011101101")


def batch_for(a: Architecture, *, padded_at_end: bool = False) -> Batch:
    """A batch as long as the network takes, with padding on either side and in between, or as much of it at the end alone."""
    masks = ["".join(sorted(mask, reverse=True)) for mask in _MASKS] if padded_at_end else _MASKS
    return batch(SEED, a, drawn([mask[: a.longest] for mask in masks]))
