"""The golden `tiny`: two narrow layers whose weights are made to show mistakes.

Random initialisation hides bugs: zero biases, unit gammas, large norm inputs. Here every parameter is non-degenerate and unlike
its neighbours, hidden states are of the order of 2^-6 so that norm inputs have a variance near 10^-4, where an epsilon of 1e-5
shows even in bfloat16, and the input of GELU has a deviation near 1.5, where tanh and erf part.
"""

import numpy as np

from conformance.activations import parameter_shapes
from conformance.architecture import Architecture
from conformance.batch import IGNORED_LABEL, Batch
from conformance.goldens.philox import Stream
from conformance.numerics.formats import FORMATS, Array

ARCHITECTURE = Architecture(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
    num_labels=3,
    heads=("pretraining", "classification"),
)

# Scale of a parameter, as a power of two, by the end of its name; first match wins. With hidden states h ~ 2^-6 and n inputs a
# weight of 2^k gives an output of 2^(k-6) √n: 1.4 for queries, keys and GELU's input, 0.01 for what joins a residual.
_SCALES = (
    ("_embeddings.weight", -6),
    ("attention.self.query.weight", 4),
    ("attention.self.key.weight", 4),
    ("attention.self.value.weight", 3),
    ("attention.output.dense.weight", -8),
    ("intermediate.dense.weight", 4),
    ("transform.dense.weight", 4),
    ("output.dense.weight", -9),
    ("output.dense.bias", -8),
    ("pooler.dense.weight", 3),
    ("seq_relationship.weight", -1),
    ("classifier.weight", -1),
    ("transform.LayerNorm.weight", 4),
    ("transform.LayerNorm.bias", 2),
    ("LayerNorm.weight", -6),
    ("LayerNorm.bias", -8),
    ("bias", -1),
)


def weights(seed: int, architecture: Architecture = ARCHITECTURE) -> dict[str, Array]:
    """Discriminating parameters from `seed`, each exact in eight significant bits."""
    made = {}
    for name, shape in parameter_shapes(architecture).items():
        exponent = next(e for end, e in _SCALES if name.endswith(end))
        normal = Stream(seed, name).normals(shape)
        if name.endswith("LayerNorm.weight"):
            normal = FORMATS["bfloat16"].round(1.0 + normal / 4.0)
        made[name] = normal * 2.0**exponent
    return made


# One row a way of padding: none, right, left, both sides, holes, almost everything.
_MASKS = (
    "1111111111111111",
    "1111111111000000",
    "0000011111111111",
    "0001111111111000",
    "1101101011101101",
    "1100000000000000",
)


def batch(seed: int, architecture: Architecture = ARCHITECTURE) -> Batch:
    """Six rows of sixteen tokens, both token types, labels of every head."""
    mask = np.array([[int(c) for c in row] for row in _MASKS], np.int64)
    rows, length = mask.shape
    position = np.arange(length)
    boundary = Stream(seed, "boundary").integers((rows, 1), 3, length - 3)
    chosen = Stream(seed, "labelled").integers(mask.shape, 0, 4) == 0
    labels = Stream(seed, "labels").integers(mask.shape, 0, architecture.vocab_size)
    return Batch(
        input_ids=Stream(seed, "input_ids").integers(mask.shape, 0, architecture.vocab_size),
        token_type_ids=np.asarray(position >= boundary, np.int64),
        attention_mask=mask,
        labels=np.where(chosen & (mask == 1), labels, IGNORED_LABEL),
        next_sentence_label=Stream(seed, "next_sentence_label").integers((rows,), 0, 2),
        class_labels=Stream(seed, "class_labels").integers((rows,), 0, architecture.num_labels),
    )
