"""The architecture and batch on which an unknown module is examined: all sizes differ, so that shapes identify tensors."""

from conformance.candidates.hook_effects import SMALL
from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import SEED
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

PROBE = SMALL.with_(num_hidden_layers=3)
_MASKS = ("11111111111", "11111111111", "11111110000", "00111111111", "11011101101")


def batch_for(a: Architecture, *, padded_at_end: bool = False) -> Batch:
    """Return a batch of at most the longest length; padding is before, between and after tokens, or only after them."""
    masks = ["".join(sorted(mask, reverse=True)) for mask in _MASKS] if padded_at_end else _MASKS
    cut = [mask[: a.longest] for mask in masks]
    return batch(SEED, a, drawn([mask for mask in cut if "1" in mask]))  # what attention to no token computes is undefined
