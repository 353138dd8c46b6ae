"""Components that an architecture lacks, which one table of parameters or activations may still name."""

from collections.abc import Sequence
from itertools import product

from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import COMPATIBLE_HEADS, Architecture
from conformance.model.dropout import OPTIONAL


def is_of_another_architecture(names: Sequence[str], a: Architecture) -> bool:
    """Return whether all names exist in an architecture that differs in heads, pooler, cross-attention or kind of positions.

    One table may be used for architectures with and without these components.
    """
    every = [
        a.with_(pooler=True, heads=heads, position_embedding_type=positions, is_decoder=True, add_cross_attention=True)
        for heads, positions in product(COMPATIBLE_HEADS, ("absolute", "relative_key"))
    ]
    return all(any(n in parameter_shapes(e) or n in table(e) for e in every) for n in names)


def never_drops(names: Sequence[str], a: Architecture) -> bool:
    """Return whether the names are dropouts that are absent because their rate is 0, or because there is no classifier."""
    return all(n in table(a.with_(**dict.fromkeys(OPTIONAL, 0.5), pooler=True, heads=("classification",))) for n in names)
