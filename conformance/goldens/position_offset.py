"""The golden `position-offset`: position ids start at 3, as RoBERTa's start at 2; one token type, epsilon 1e-5 as RoBERTa has it.

The offset is not RoBERTa's own, so that one that is hard-coded is seen. The longest row takes the last row of the table.
"""

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

ARCHITECTURE = Architecture(
    vocab_size=96,
    hidden_size=40,
    num_hidden_layers=2,
    num_attention_heads=5,
    intermediate_size=72,
    max_position_embeddings=15,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
    num_labels=6,
    heads=("masked_lm", "next_sentence", "classification"),
    position_offset=3,
)

_MASKS = ("111111111111", "111111110000", "001111111111", "110111011010")


def _batches(seed: int) -> dict[str, Batch]:
    return {"padded": batch(seed, ARCHITECTURE, drawn(_MASKS))}


KEPT = ("embeddings", "LayerNorm", "decoder", "seq_relationship", "classifier", "loss")
RECIPE = Generated("position-offset", ARCHITECTURE, _batches, kept=KEPT)
