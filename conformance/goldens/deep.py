"""The golden `deep`: twelve narrow layers, as many as BERT base; what grows or is lost from layer to layer."""

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

ARCHITECTURE = Architecture(
    vocab_size=64,
    hidden_size=24,
    num_hidden_layers=12,
    num_attention_heads=3,
    intermediate_size=96,
    max_position_embeddings=16,
    num_labels=2,
    heads=("masked_lm", "next_sentence", "classification"),
)

_MASKS = ("111111111111", "111111110000", "001111111111", "110111011010")


def _batches(seed: int) -> dict[str, Batch]:
    return {"padded": batch(seed, ARCHITECTURE, drawn(_MASKS))}


RECIPE = Generated("deep", ARCHITECTURE, _batches)
