"""The table of activations: every tensor of the forward pass, with its equation, its shape and its parents.

A name is Hugging Face's module path if a module exists, and otherwise an additional path (`scores`, `probs`, `context`, the losses,
`embeddings.sum`). The rows are in the order of computation, so every parent precedes its children.

To add an activation:

1. Yield its row after its parents, in `model.layer`, `model.heads` or here: name, kind, parents, parameters, axes, equation. The
   name of an output is also added to `outputs`, and the settings that switch an optional part on to `_PARTS`.
2. If no equation of that kind exists, write a `Step` in `conformance.oracle` (value, Jacobians, roundings) and register it in
   `conformance.oracle.equations.EQUATIONS`.
3. For a new kind, write the backward step of that equation in `conformance.oracle.gradients`, register it as `KIND_backward` in
   `EQUATIONS`, and enter it in `_INPUTS` and `_EQUATIONS` of `conformance.model.gradients` unless their defaults hold (an
   elementwise function of one parent). Its mistakes are faults of their own (`conformance.faults`).
4. Run `python -m conformance.goldens.make fixtures`, which stores the activation in every golden that keeps it (`Generated.kept`);
   this needs the extra `real`. Let the candidates in `implementations` expose it, by their tables of activations.
5. Run `conformance/tests/test_mathematics.py`, for the Jacobians; `test_arithmetics.py`, for the roundings: it compares the
   errors of linear layers with sigma; `test_correct_variants.py`, for whole networks; and `test_oracle_gradients.py`.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from conformance.model.activation import HIDDEN, STATES, Activation, affine
from conformance.model.architecture import HEADS, Architecture
from conformance.model.heads import head_rows
from conformance.model.layer import STATES_NAME, layer_rows

LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.*)")  # number of the layer, and name of the activation in it
_LAYER_OUTPUT = "output.LayerNorm"


def _embeddings(a: Architecture) -> Iterator[Activation]:
    width = a.hidden_size
    tables, names = [], ("word", "token_type") if a.has_relative_positions else ("word", "position", "token_type")
    offset = a.position_offset
    positions = f"{offset}..S+{offset - 1}" if offset else "0..S-1"
    indices = {"word": "input_ids", "position": positions, "token_type": "token_type_ids"}
    for name, index in ((name, indices[name]) for name in names):
        path = f"embeddings.{name}_embeddings"
        stored = not (name == "position" and a.position_embedding_type == "sinusoidal")
        kind = f"{name}_lookup" if stored else "sinusoids"
        parameters = {"weight": f"bert.{path}.weight"} if stored else {}
        equation = f"E[{index}]" if stored else f"sin(s/10000^(2i/H)), cos(s/10000^(2i/H)), s = {index}"
        yield Activation(path, kind, (), HIDDEN, width, equation, parameters, exact=stored)
        tables.append(path)
    added = "word + token type" if a.has_relative_positions else "word + token type + position"
    if a.embedding_norm:
        last = "embeddings.LayerNorm"
        equation = f"LayerNorm({added})"
        yield Activation(last, "norm", tuple(tables), HIDDEN, width, equation, affine(f"bert.{last}"))
    else:
        last = "embeddings.sum"
        yield Activation(last, "sum", tuple(tables), HIDDEN, width, added)
    yield Activation("embeddings.dropout", "copy", (last,), HIDDEN, width, "identity in eval mode", exact=True)


def table(a: Architecture) -> dict[str, Activation]:
    """Return every activation of architecture `a` by name, in the order of computation."""
    return {row.name: row for row in _rows(a)}


@lru_cache(maxsize=8)
def _rows(a: Architecture) -> tuple[Activation, ...]:
    rows = list(_embeddings(a))
    if a.add_cross_attention:
        equation = "an encoder's, given with the batch"
        rows.append(Activation(STATES_NAME, "encoder_states", (), STATES, a.hidden_size, equation, exact=True, is_internal=True))
    for index in range(a.num_hidden_layers):
        rows += layer_rows(a, index, layer_input(index))
    rows += head_rows(a, last_hidden(a))
    return tuple(rows)


def layer_output(layer: int) -> str:
    """Return the name of the activation that is the output of a layer."""
    return f"encoder.layer.{layer}.{_LAYER_OUTPUT}"


def layer_input(layer: int) -> str:
    """Return the name of the activation that is the input of a layer: the output of the layer before, or of the embeddings."""
    return layer_output(layer - 1) if layer else "embeddings.dropout"


def is_layer_output(name: str) -> bool:
    """Return whether an activation is the output of a layer.

    Example:
        >>> [is_layer_output(f"encoder.layer.1.{name}") for name in ("output.LayerNorm", "attention.output.LayerNorm")]
        [True, False]
    """
    match = LAYER.fullmatch(name)
    return match is not None and match[2] == _LAYER_OUTPUT


def last_hidden(a: Architecture) -> str:
    """Return the name of the last hidden state: the output of the last layer, or of the embeddings if there is no layer."""
    return layer_input(a.num_hidden_layers)


def output_of_transformers(name: str, a: Architecture) -> str:
    """Return the name of the activation that transformers' output of this name is; empty for any other name.

    Example:
        >>> from conformance import load_golden
        >>> output_of_transformers("last_hidden_state", load_golden("tiny").checkpoint.architecture)
        'encoder.layer.1.output.LayerNorm'
    """
    return last_hidden(a) if name == "last_hidden_state" else OUTPUTS_OF_TRANSFORMERS.get(name, "")


def placed(name: str) -> tuple[str, str]:
    """Return the part of the network that an activation belongs to, for display, and its name within that part."""
    match = LAYER.fullmatch(name)
    if match:
        return f"layer {match[1]}", match[2]
    part, _, rest = name.partition(".")
    if part == "step":  # an optimizer step of a training run
        number, _, rest = rest.partition(".")
        return f"step {number}", rest
    return (part, rest) if part == "embeddings" else ("pooler and heads", name)


def outputs(a: Architecture) -> tuple[str, ...]:
    """Return the final hidden state, and the logits of every head and the sentence embedding that the architecture has.

    A candidate must expose at least one of them.
    """
    logits = ("cls.predictions.decoder", "cls.predictions.log_probs", "cls.seq_relationship", "cls.seq_relationship.log_probs")
    rows = table(a)
    return (last_hidden(a), *(name for name in (*logits, "classifier", "qa_outputs", "sentence_embedding") if name in rows))


OUTPUTS_OF_TRANSFORMERS = {
    "pooler_output": "pooler.activation",
    "prediction_logits": "cls.predictions.decoder",
    "seq_relationship_logits": "cls.seq_relationship",
}

# Settings that add an optional part to an architecture.
_PARTS: tuple[dict[str, Any], ...] = (
    {"pooler": True},
    *({"heads": (head,), "pooler": True} for head in HEADS),
    {"pooling": "mean"},
    {"pooling": "mean", "normalize": True},
    {"is_decoder": True, "add_cross_attention": True},
    {"position_embedding_type": "relative_key"},
)


def missing_part(name: str, a: Architecture) -> str:
    """Return the settings, such as `pooling='mean'`, that would give architecture `a` an activation that it does not have.

    The result is empty if the architecture has the activation, or if no settings would add it.

    Example:
        >>> from conformance import load_golden
        >>> missing_part("sentence_embedding", load_golden("tiny").checkpoint.architecture)
        "pooling='mean'"
    """
    for part in () if name in table(a) else _PARTS:
        wanting = {key: value for key, value in part.items() if getattr(a, key) != value}
        if wanting and name in table(a.with_(**part)):
            return ", ".join(f"{key}={value!r}" for key, value in wanting.items())
    return ""


def parameter_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter used in the table, by Hugging Face's name; the tied decoder weight appears once."""
    tables = {
        "word_lookup": a.vocab_size,
        "position_lookup": a.max_position_embeddings,
        "token_type_lookup": a.type_vocab_size,
        "distance_lookup": 2 * a.max_position_embeddings - 1,
    }
    rows = table(a)
    shapes: dict[str, tuple[int, ...]] = {}
    for row in rows.values():
        for role, name in row.parameters.items():
            if row.kind in tables:
                shape: tuple[int, ...] = (tables[row.kind], row.width)
            elif role == "bias" or row.kind == "norm":
                shape = (row.width,)
            else:
                shape = (row.width, rows[row.parents[0]].width)
            shapes.setdefault(name, shape)
    return shapes


def parameters_of_head(head: str, a: Architecture) -> list[str]:
    """Return Hugging Face's names of the parameters that architecture `a` has only because of the given head."""
    others = parameter_shapes(a.with_(heads=tuple(h for h in a.heads if h != head)))
    return [name for name in parameter_shapes(a) if name not in others]


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

    The candidate draws the dropout masks; all other values follow from them. Dropout (Srivastava et al. 2014, section 10; the
    "inverted" form, as in every framework) is y = x · m / (1 − p), with independent m_i equal to 1 with probability 1 − p. The
    mask m is recovered from the candidate's own result: m_i = 1 where y_i is not 0. BERT applies dropout after the embeddings,
    after the attention probabilities, and after each dense layer that precedes a residual sum (Devlin et al. 2019, appendix A.2:
    p = 0.1).

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
