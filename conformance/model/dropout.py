"""The table of a forward pass in training mode: what dropout keeps is drawn by the candidate, and all else follows from that.

Dropout (Srivastava et al. 2014, section 10; "inverted", as every framework has it) is y = x · m / (1 − p), m_i independent
and 1 with probability 1 − p. Of a candidate's own result, m is where y is not 0. BERT has it behind the embeddings, the attention
probabilities and each dense layer before a residual (Devlin et al. 2019, appendix A.2: p = 0.1).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from conformance.model.activation import Activation
from conformance.model.activations import table
from conformance.model.architecture import Architecture

# The rates of a config, each with the ends of the names of the activations that are dropped at it.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "attention_probs_dropout_prob": (".self.dropout",),
    "activation_dropout": (".intermediate.dropout",),
    "classifier_dropout": (),
    "hidden_dropout_prob": (".output.dropout", "embeddings.dropout"),
}
_OF_CLASSIFIER = "dropout"
OPTIONAL = ("activation_dropout", "classifier_dropout")  # their activations are there where they are not 0


def setting_of(name: str) -> str:
    """The config's name of the rate at which a dropout drops.

    Example:
        >>> setting_of("encoder.layer.0.attention.self.dropout")
        'attention_probs_dropout_prob'
    """
    if name == _OF_CLASSIFIER:
        return "classifier_dropout"
    return next(setting for setting, ends in SETTINGS.items() if name.endswith(ends))


def rate_of(name: str, a: Architecture) -> float:
    """The probability p with which an element of the dropout `name` is dropped."""
    return float(getattr(a, setting_of(name)))


def dropouts(a: Architecture) -> dict[str, Activation]:
    """The activations that drop something in training mode."""
    return {name: row for name, row in table(a).items() if is_dropout(row) and rate_of(name, a) > 0.0}


def is_dropout(row: Activation) -> bool:
    """Whether it is a dropout: the identity in eval mode."""
    return row.kind == "copy"


def in_training(rows: Mapping[str, Activation], drawn: Collection[str]) -> dict[str, Activation]:
    """The same rows in training mode, where the masks of the dropouts `drawn` are known.

    Example:
        >>> from conformance import load_golden
        >>> rows = table(load_golden("tiny").checkpoint.architecture)
        >>> in_training(rows, ["embeddings.dropout"])["embeddings.dropout"].equation
        'x m / (1 − p), m what is kept'
    """
    return {name: _dropping(row) if name in drawn and is_dropout(row) else row for name, row in rows.items()}


def _dropping(row: Activation) -> Activation:
    return replace(row, kind="dropout", equation="x m / (1 − p), m what is kept", exact=False, dropout=row.name)
