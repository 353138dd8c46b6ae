"""The table of activations of a forward pass in training mode.

The candidate draws the dropout masks; all other values follow from them. Dropout (Srivastava et al. 2014, section 10; the
"inverted" form, as in every framework) is y = x · m / (1 − p), with independent m_i equal to 1 with probability 1 − p. The mask m
is recovered from the candidate's own result: m_i = 1 where y_i is not 0. BERT applies dropout after the embeddings, after the
attention probabilities, and after each dense layer that precedes a residual sum (Devlin et al. 2019, appendix A.2: p = 0.1).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from conformance.model.activation import Activation
from conformance.model.activations import table
from conformance.model.architecture import Architecture

# Maps each dropout probability of a config to the suffixes of the activations it applies to.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "attention_probs_dropout_prob": (".self.dropout",),
    "activation_dropout": (".intermediate.dropout",),
    "classifier_dropout": (),
    "hidden_dropout_prob": (".output.dropout", "embeddings.dropout"),
}
_OF_CLASSIFIER = "dropout"
OPTIONAL = ("activation_dropout", "classifier_dropout")  # their activations exist only if the probability is not 0


def setting_of(name: str) -> str:
    """Return the config's name for the probability of a dropout.

    Example:
        >>> setting_of("encoder.layer.0.attention.self.dropout")
        'attention_probs_dropout_prob'
    """
    if name == _OF_CLASSIFIER:
        return "classifier_dropout"
    return next(setting for setting, ends in SETTINGS.items() if name.endswith(ends))


def rate_of(name: str, a: Architecture) -> float:
    """Return the probability p with which the dropout `name` drops an element."""
    return float(getattr(a, setting_of(name)))


def dropouts(a: Architecture) -> dict[str, Activation]:
    """Return the dropout activations whose probability is not 0, by name."""
    return {name: row for name, row in table(a).items() if is_dropout(row) and rate_of(name, a) > 0.0}


def is_dropout(row: Activation) -> bool:
    """Return whether the activation is a dropout, which is the identity in eval mode."""
    return row.kind == "copy"


def in_training(rows: Mapping[str, Activation], drawn: Collection[str]) -> dict[str, Activation]:
    """Return the rows of the table in training mode.

    Args:
        rows: the rows in eval mode.
        drawn: names of the dropouts whose masks are known; the other dropouts remain the identity.

    Example:
        >>> from conformance import load_golden
        >>> rows = table(load_golden("tiny").checkpoint.architecture)
        >>> in_training(rows, ["embeddings.dropout"])["embeddings.dropout"].equation
        'x m / (1 − p), m what is kept'
    """
    return {name: _dropping(row) if name in drawn and is_dropout(row) else row for name, row in rows.items()}


def _dropping(row: Activation) -> Activation:
    return replace(row, kind="dropout", equation="x m / (1 − p), m what is kept", exact=False, dropout=row.name)
