"""The networks of the benchmark: small, with weights from a seed, in several architectures; and the shipped goldens by name.

Mistakes are planted in networks with discriminating weights, and in goldens. Correct variants are also judged on networks with
initial weights, whose hidden states and scores are small: with an `initializer_range` of 0.002, products are subnormal in float16.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from conformance.goldens.batches import Stream, batch, drawn
from conformance.goldens.custom_golden import golden_of
from conformance.goldens.generated_weights import weights
from conformance.goldens.golden import Golden, load_golden
from conformance.goldens.shipped_goldens import SINUSOIDAL, TINY
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.model.training import constant_of
from conformance.numerics.formats import Array

LAYERS = 3
_MASKS = ("1111111111111111", "1111111111000000", "0000011111111111", "1101101011101101", "1111111111111110")

ARCHITECTURES: dict[str, Architecture] = {
    "bert": TINY.with_(num_hidden_layers=LAYERS, type_vocab_size=3),
    "tanh-form": TINY.with_(num_hidden_layers=LAYERS, hidden_act="gelu_new"),
    "sinusoidal": SINUSOIDAL.with_(num_hidden_layers=LAYERS, max_position_embeddings=len(_MASKS[0])),
    "token-heads": TINY.with_(
        num_hidden_layers=LAYERS,
        pooler=False,
        heads=("token_classification", "question_answering"),
        pooling="mean",
        normalize=True,
    ),
    "sentence-heads": TINY.with_(num_hidden_layers=LAYERS, heads=("next_sentence", "multiple_choice"), pooling="cls"),
}

INITIAL: dict[str, Architecture] = {
    f"initial, {deviation:g}": ARCHITECTURES["bert"].with_(initializer_range=deviation) for deviation in (0.02, 0.002)
}
"""Architectures whose networks have the parameters that training starts from."""


@lru_cache(maxsize=12)
def network(architecture: str, seed: int) -> Golden:
    """Return a golden of this architecture and seed, or the shipped golden of this name, which has one seed.

    The attended tokens of a generated network include id 0, which mistakes about padding need.
    """
    a = {**ARCHITECTURES, **INITIAL}.get(architecture)
    if a is None:
        return load_golden(architecture)
    inputs = batch(seed, a, drawn(list(_MASKS)))
    ids = np.array(inputs.input_ids)
    ids[0, 3] = 0
    checkpoint = Checkpoint(a, _initial_weights(seed, a) if architecture in INITIAL else _weights(seed, a))
    name = f"{architecture}-{seed}"
    return golden_of(name, checkpoint, {name: replace(inputs, input_ids=ids)})


def _weights(seed: int, a: Architecture) -> Mapping[str, Array]:
    return weights(seed, a, **({"hidden": 1.0} if a.position_embedding_type == "sinusoidal" else {}))


def _initial_weights(seed: int, a: Architecture) -> Mapping[str, Array]:
    """Return constants as training starts from them, and normal deviates of the standard deviation `initializer_range`."""
    return {name: _initial(Stream(seed, name), name, shape, a) for name, shape in parameter_shapes(a).items()}


def _initial(stream: Stream, name: str, shape: tuple[int, ...], a: Architecture) -> Array:
    constant = constant_of(name)
    return stream.normals(shape) * a.initializer_range if constant is None else np.full(shape, constant)
