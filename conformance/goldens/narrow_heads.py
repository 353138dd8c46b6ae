"""The golden `narrow-heads`: six heads of 32 where heads of 64 would fit as well, epsilon 1e-5, GELU's erf form.

Heads that are 64 wide whatever the config says change no shape but that of scores and probabilities, which few candidates expose.
"""

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

ARCHITECTURE = Architecture(
    vocab_size=64,
    hidden_size=192,
    num_hidden_layers=3,
    num_attention_heads=6,
    intermediate_size=320,
    max_position_embeddings=16,
    type_vocab_size=3,
    layer_norm_eps=1e-5,
    num_labels=4,
    heads=("masked_lm", "next_sentence", "classification"),
)

_MASKS = ("111111111111", "111111110000", "001111111111", "110111011010")


def _batches(seed: int) -> dict[str, Batch]:
    return {"padded": batch(seed, ARCHITECTURE, drawn(_MASKS))}


KEPT = ("LayerNorm", "decoder", "seq_relationship", "classifier", "loss")
RECIPE = Generated("narrow-heads", ARCHITECTURE, _batches, kept=KEPT)
