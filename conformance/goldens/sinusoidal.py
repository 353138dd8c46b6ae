"""The recipe of the golden `sinusoidal`, a BERT with sinusoidal positions and plain heads."""

from dataclasses import replace

import numpy as np

from conformance.goldens.batches import batch, drawn
from conformance.goldens.recipe import Generated
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch

ARCHITECTURE = Architecture(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=12,  # the batch's length, so that implementations limited to this length can be judged
    type_vocab_size=3,
    position_embedding_type="sinusoidal",
    embedding_norm=False,
    pooler=False,
    heads=("plain_masked_lm", "plain_next_sentence"),
)

PAD = 0

_MASKS = ("111111111111", "111111110000", "111110000000", "111111111110")


def _batches(seed: int) -> dict[str, Batch]:
    """Return the batches, in which ids are 0 exactly at padding, so that a mask derived from the ids equals the attention mask."""
    mask = drawn(_MASKS)
    made = batch(seed, ARCHITECTURE, mask)
    ids = np.where(mask == 1, 1 + made.input_ids % (ARCHITECTURE.vocab_size - 1), PAD)
    second = np.arange(mask.shape[1]) >= mask.sum(1, keepdims=True) // 2
    types = np.where(mask == 1, 1 + second, PAD)
    return {"padded": replace(made, input_ids=np.asarray(ids, np.int64), token_type_ids=np.asarray(types, np.int64))}


_ABOUT = (
    "A BERT of another architecture, that of many tutorials. Sinusoidal positions, no norm on the embeddings, token types 1 and 2 "
    "with 0 for padding, no pooler, and heads of one linear layer and a log-softmax each. The sinusoids are of the order of 1, so "
    "hidden states are as well."
)
RECIPE = Generated("sinusoidal", _ABOUT, ARCHITECTURE, _batches, version=2, hidden=1.0, is_complete=True)
