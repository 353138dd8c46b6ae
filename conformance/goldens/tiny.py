"""The golden `tiny`: two narrow layers, every way of padding; the quickest look at everything."""

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

ARCHITECTURE = Architecture(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
    num_labels=3,
    heads=("masked_lm", "next_sentence", "classification"),
)

# No padding, right, left, both sides, holes, almost everything.
_MASKS = (
    "1111111111111111",
    "1111111111000000",
    "0000011111111111",
    "0001111111111000",
    "1101101011101101",
    "1100000000000000",
)


def _batches(seed: int) -> dict[str, Batch]:
    return {"padded": batch(seed, ARCHITECTURE, drawn(_MASKS))}


RECIPE = Generated("tiny", ARCHITECTURE, _batches)
