"""The table of activations: every tensor of the forward pass, with its equation, its shape and its parents.

A name is Hugging Face's module path if a module exists, and otherwise an additional path (`scores`, `probs`, `context`, the losses,
`embeddings.sum`). The rows are in the order of computation, so every parent precedes its children.

To add an activation:

1. Yield its row after its parents, in `model.heads` or here: name, kind, parents, parameters, axes, equation. The
   name of an output is also added to `outputs`, and the settings that switch an optional part on to `_PARTS`.
2. If no equation of that kind exists, write a `Step` in `conformance.oracle` (value, Jacobians, roundings) and register it in
   `conformance.oracle.equations.EQUATIONS`.
3. For a new kind, write the backward step of that equation in `conformance.oracle.gradients`, register it as `KIND_backward` in
   `EQUATIONS`, and enter it in `_INPUTS` and `_EQUATIONS` of `conformance.model.gradients` unless their defaults hold (an
   elementwise function of one parent). Its mistakes are faults of their own (`conformance.faults`).
4. Run `python -m conformance.goldens.make fixtures`, which stores the activation in every golden that keeps it (`Recipe.keeps`);
   this needs the extra `real`. Let the candidates in `implementations` expose it, by their tables of activations.
5. Run `conformance/tests/test_mathematics.py`, for the Jacobians; `test_arithmetics.py`, for the roundings: it compares the
   errors of linear layers with sigma; `test_correct_variants.py`, for whole networks; and `test_oracle_gradients.py`.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from conformance.model.activation import (
    ATTENTION,
    CROSS_ATTENTION,
    DISTANCES,
    HIDDEN,
    STATES,
    STATES_NAME,
    Activation,
    affine,
)
from conformance.model.architecture import HEADS, Architecture
from conformance.model.heads import head_rows

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


def _layer_rows(a: Architecture, index: int, hidden: str) -> Iterator[Activation]:
    """Yield the rows of self-attention, of cross-attention if there is any, and of the feed-forward network.

    Args:
        a: the architecture.
        index: index of the layer.
        hidden: name of the activation that is the input of the layer.
    """
    layer = _Layer(a, index)
    yield from layer.attention("attention", hidden)
    attended = f"{layer.path}.attention.output.LayerNorm"
    if a.add_cross_attention:
        yield from layer.attention("crossattention", attended, states=True)
        attended = f"{layer.path}.crossattention.output.LayerNorm"
    yield from layer.feed_forward(attended)


@dataclass(frozen=True)
class _Layer:
    """One encoder layer of an architecture."""

    a: Architecture
    index: int

    @property
    def path(self) -> str:
        return f"encoder.layer.{self.index}"

    def _row(
        self,
        name: str,
        kind: str,
        parents: tuple[str, ...],
        equation: str,
        *,
        parameters: str = "",
        axes: tuple[str, ...] = HIDDEN,
        size: int = 0,
        exact: bool = False,
        is_internal: bool = False,
    ) -> Activation:
        """Return a row of this layer, with the weight and bias of the module `parameters` if one is given."""
        own = affine(f"bert.{parameters}") if parameters else {}
        causal = self.a.is_decoder and axes == ATTENTION
        heads = self.a.heads_of(self.index) if axes == ATTENTION else 0
        return Activation(
            name, kind, parents, axes, size, equation, own, exact, self.index, is_internal=is_internal, causal=causal, heads=heads
        )

    def attention(self, name: str, hidden: str, *, states: bool = False) -> Iterator[Activation]:
        """Yield self-attention, or cross-attention to encoder states, with its residual sum and norm."""
        own, outer = f"{self.path}.{name}.self", f"{self.path}.{name}.output"
        query, key, value, scores, probs, dropped, context = (
            f"{own}.{part}" for part in ("query", "key", "value", "scores", "probs", "dropout", "context")
        )
        width = self.a.hidden_size if states else self.a.heads_of(self.index) * self.a.head_size
        source, of_source, pairs = (STATES_NAME, STATES, CROSS_ATTENTION) if states else (hidden, HIDDEN, ATTENTION)
        for projection, parent, axes in ((query, hidden, HIDDEN), (key, source, of_source), (value, source, of_source)):
            yield self._row(projection, "linear", (parent,), "x Wᵀ + b", parameters=projection, axes=axes, size=width)
        if self.a.has_relative_positions and not states:
            yield from self._scores_by_distance(own)
        else:
            yield self._row(scores, "scores", (query, key), "q kᵀ / √d, before the mask", axes=pairs)
        yield self._row(probs, "probs", (scores,), "softmax over unmasked keys; 0 elsewhere", axes=pairs)
        yield self._row(dropped, "copy", (probs,), "identity in eval mode", axes=pairs, exact=True)
        yield self._row(context, "context", (dropped, value), "probs · v, heads side by side", size=width)
        yield from self._residual(outer, context, hidden, f"{outer}.LayerNorm")

    def _scores_by_distance(self, own: str) -> Iterator[Activation]:
        """Yield the scores as a sum of the query-key products and of the products with the distance embeddings."""
        distances, scores = f"{own}.distance_embedding", f"{own}.scores"
        equation, weight = "D_ij = E[i − j + P − 1]", {"weight": f"bert.{distances}.weight"}
        yield Activation(
            distances, "distance_lookup", (), DISTANCES, self.a.head_size, equation, weight, exact=True, layer=self.index
        )
        parts = [
            (f"{scores}.content", "scores", (f"{own}.query", f"{own}.key"), "q kᵀ / √d"),
            (f"{scores}.query_distance", "query_distance_scores", (f"{own}.query", distances), "q_i · D_ij / √d"),
            (f"{scores}.key_distance", "key_distance_scores", (f"{own}.key", distances), "k_j · D_ij / √d"),
        ]
        terms = parts if self.a.position_embedding_type == "relative_key_query" else parts[:2]
        for name, kind, parents, formula in terms:
            yield self._row(name, kind, parents, formula, axes=ATTENTION, is_internal=True)
        summed = tuple(name for name, *_ in terms)
        yield self._row(scores, "scores_sum", summed, "the sum of its terms, before the mask", axes=ATTENTION)

    def _residual(self, path: str, inputs: str, skip: str, norm: str) -> Iterator[Activation]:
        """Yield a linear layer, dropout, and the norm of the residual sum; `norm` is the module that has the norm's parameters."""
        dense, dropout, out, width = f"{path}.dense", f"{path}.dropout", f"{path}.LayerNorm", self.a.hidden_size
        yield self._row(dense, "linear", (inputs,), "x Wᵀ + b", parameters=dense, size=width)
        yield self._row(dropout, "copy", (dense,), "identity in eval mode", size=width, exact=True)
        yield self._row(out, "norm", (dropout, skip), "LayerNorm(x + skip)", parameters=norm, size=width)

    def feed_forward(self, attended: str) -> Iterator[Activation]:
        """Yield the feed-forward network with its residual sum and norm."""
        inner, act = f"{self.path}.intermediate.dense", f"{self.path}.intermediate.intermediate_act_fn"
        function, size = self.a.hidden_act, self.a.intermediate_size
        yield self._row(inner, "linear", (attended,), "x Wᵀ + b", parameters=inner, size=size)
        yield self._row(act, function, (inner,), f"{function}(x)", size=size)
        if self.a.activation_dropout:
            inner, act = act, f"{self.path}.intermediate.dropout"
            yield self._row(act, "copy", (inner,), "identity in eval mode", size=size, exact=True)
        shared = f"{self.path}.attention.output.LayerNorm"
        norm = shared if self.a.shared_layer_norm else f"{self.path}.output.LayerNorm"
        yield from self._residual(f"{self.path}.output", act, attended, norm)


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
        rows += _layer_rows(a, index, layer_input(index))
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
