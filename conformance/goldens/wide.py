"""The golden `wide`: one layer of BERT base's width; sums as long as they are in earnest."""

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

ARCHITECTURE = Architecture(
    vocab_size=64,
    hidden_size=768,
    num_hidden_layers=1,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=16,
    num_labels=2,
    heads=("masked_lm", "next_sentence", "classification"),
)

_MASKS = ("11111111", "11111000", "01110110")


def _batches(seed: int) -> dict[str, Batch]:
    return {"padded": batch(seed, ARCHITECTURE, drawn(_MASKS))}


RECIPE = Generated("wide", ARCHITECTURE, _batches)
