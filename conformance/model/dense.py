"""The `Dense` module of sentence-transformers, which follows the pooling of a sentence embedding."""

from dataclasses import dataclass

from conformance.errors import UnsupportedArchitectureError

DENSE_ACTIVATIONS = ("", "tanh", "relu", "gelu")


@dataclass(frozen=True)
class Dense:
    """y = f(x Wᵀ + b): (B, I) -> (B, O), as `sentence_transformers.models.Dense` computes it.

    Attributes:
        out_features: O; I is the width of the preceding module's output.
        bias: whether there is a bias b.
        activation: f: `tanh`, `relu`, `gelu` (with erf, as in `torch.nn.GELU`), or empty for the identity.

    Example:
        >>> Dense(512, activation="tanh").bias
        True
    """

    out_features: int
    bias: bool = True
    activation: str = ""

    def __post_init__(self) -> None:
        """Validate the fields; raises `UnsupportedArchitectureError` for a module that the equations do not cover."""
        if not isinstance(self.out_features, int) or self.out_features < 1:
            raise UnsupportedArchitectureError(
                f"out_features of a Dense module is {self.out_features!r:.40}, expected an integer of at least 1"
            )
        if self.activation not in DENSE_ACTIVATIONS:
            raise UnsupportedArchitectureError(
                f"the activation {self.activation!r:.60} of a Dense module has no equation here; known are "
                f"{', '.join(filter(None, DENSE_ACTIVATIONS))}, and the empty string for the identity"
            )
