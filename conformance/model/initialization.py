"""The initial parameters of training: biases are 0, LayerNorm weights are 1, and matrices and tables are random.

Random values are drawn from N(0, r²), where r is the config's `initializer_range`: not truncated in transformers, truncated at
± 2 r in Google's code (Devlin et al. 2019's code). In transformers the embedding of padding, row 0, is then set to 0; in Google's
code it is random like all others.
"""

from dataclasses import replace

from conformance.model.activation import Activation
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.training import at, parameter_row

CONSTANT, DRAWN = "initial_constant", "initial_draw"
WORDS = "bert.embeddings.word_embeddings.weight"


def constant_of(name: str) -> float | None:
    """Return the initial value of all elements of a parameter, or None if they are random.

    Example:
        >>> constant_of("bert.pooler.dense.bias"), constant_of("bert.embeddings.LayerNorm.weight"), constant_of("classifier.weight")
        (0.0, 1.0, None)
    """
    if name.endswith("bias"):
        return 0.0
    return 1.0 if ".LayerNorm." in name else None


def initial_table(a: Architecture) -> dict[str, Activation]:
    """Return a row for each parameter before the first step, named `step.0.NAME`."""
    rows = {}
    for name, shape in parameter_shapes(a).items():
        constant = constant_of(name)
        kind, equation = (DRAWN, "N(0, initializer_range²)") if constant is None else (CONSTANT, f"{constant:g}")
        rows[at(0, name)] = replace(parameter_row(at(0, name), kind, (), shape, equation, {}), exact=constant is not None)
    return rows
