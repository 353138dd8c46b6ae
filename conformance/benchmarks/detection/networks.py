"""The networks in which mistakes are planted: small, with discriminating weights from a seed, in five architectures."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from conformance.goldens import sinusoidal
from conformance.goldens.batches import batch, drawn
from conformance.goldens.custom_golden import golden_of
from conformance.goldens.generated_weights import weights
from conformance.goldens.golden import Golden
from conformance.goldens.shipped_goldens import TINY
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint

LAYERS = 3
_MASKS = ("1111111111111111", "1111111111000000", "0000011111111111", "1101101011101101", "1111111111111110")

ARCHITECTURES: dict[str, Architecture] = {
    "bert": TINY.architecture.with_(num_hidden_layers=LAYERS, type_vocab_size=3),
    "tanh-form": TINY.architecture.with_(num_hidden_layers=LAYERS, hidden_act="gelu_new"),
    "sinusoidal": sinusoidal.ARCHITECTURE.with_(num_hidden_layers=LAYERS, max_position_embeddings=len(_MASKS[0])),
    "token-heads": TINY.architecture.with_(
        num_hidden_layers=LAYERS,
        pooler=False,
        heads=("token_classification", "question_answering"),
        pooling="mean",
        normalize=True,
    ),
    "sentence-heads": TINY.architecture.with_(num_hidden_layers=LAYERS, heads=("next_sentence", "multiple_choice"), pooling="cls"),
}


@lru_cache(maxsize=12)
def network(architecture: str, seed: int) -> Golden:
    """Return a golden of this architecture and seed; its attended tokens include id 0, which mistakes about padding need."""
    a = ARCHITECTURES[architecture]
    inputs = batch(seed, a, drawn(list(_MASKS)))
    ids = np.array(inputs.input_ids)
    ids[0, 3] = 0
    hidden = {"hidden": 1.0} if a.position_embedding_type == "sinusoidal" else {}
    checkpoint = Checkpoint(a, weights(seed, a, **hidden))
    name = f"{architecture}-{seed}"
    return golden_of(name, checkpoint, {name: replace(inputs, input_ids=ids)})
