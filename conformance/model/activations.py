"""The table of activations: every tensor of the forward pass, its equation, its shape and what it is computed from.

A name is Hugging Face's module path wherever a module exists, and one extra path where the tensor has no module (`scores`,
`probs`, `context`, the losses, `embeddings.sum`). The table is written in the order of computation, so every parent stands
before its children.

To add an activation:

1. Yield its row in `table`, behind its parents: name, kind, parents, parameters, axes, equation.
2. If no equation of that kind exists, write a `Step` in `conformance.oracle` (value, Jacobians, roundings), and name it in
   `conformance.oracle.equations.EQUATIONS`; and one for the gradient that it gives its inputs (`conformance.model.gradients`).
   `conformance/tests/test_mathematics.py` checks their Jacobians and roundings.
3. Run `python -m conformance.goldens.make fixtures`, which stores it in every golden that has it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from conformance.model.architecture import Architecture

HIDDEN = ("batch", "position", "feature")
ATTENTION = ("batch", "head", "query", "key")
SENTENCE = ("batch", "feature")
SCALAR: tuple[str, ...] = ()

POOLING = "pooling-"  # what the kinds of pooling begin with; the name follows
_POOLED = {
    "cls": "x₀, the first token",
    "mean": "Σ m x / Σ m over the tokens, m the mask",
    "mean-sqrt-length": "Σ m x / √Σ m over the tokens, m the mask",
    "max": "the largest of each feature over the tokens that are not padding",
    "last": "x of the last token that is not padding",
}

_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.*)")


@dataclass(frozen=True)
class Activation:
    """One row of the table.

    Attributes:
        name: Hugging Face's module path, or the extra path of a tensor that has no module.
        kind: which equation computes it; key of `conformance.oracle.EQUATIONS`.
        parents: the activations that it is computed from, in the order of its equation.
        parameters: role (`weight`, `bias`) to Hugging Face's parameter name.
        axes: what each axis counts.
        width: length of the last axis; 0 where the batch decides it.
        equation: the formula, for people.
        exact: whether any difference at all is a failure (a table look-up, a copy).
        layer: the encoder layer that it belongs to, or None.
        height: length of an axis `row`, of the gradient of a matrix.
        is_internal: whether no implementation has to form it, so that it is not missed.
        dropout: the activation whose random mask its equation reads, in training mode; empty where it reads none.
    """

    name: str
    kind: str
    parents: tuple[str, ...]
    axes: tuple[str, ...]
    width: int
    equation: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    exact: bool = False
    layer: int | None = None
    height: int = 0
    is_internal: bool = False
    dropout: str = ""

    def shape(self, batch_size: int, length: int, heads: int) -> tuple[int, ...]:
        """Its shape for a batch of `batch_size` rows of `length` tokens."""
        sizes = {"batch": batch_size, "position": length, "head": heads, "query": length, "key": length, "row": self.height}
        return tuple(sizes.get(axis, self.width) for axis in self.axes)

    def cut(self, rows: slice, length: int | None = None) -> tuple[slice, ...]:
        """The index of its part for some rows of the batch, and the first `length` tokens of each."""
        parts = {"batch": rows, **dict.fromkeys(("position", "query", "key"), slice(length))}
        return tuple(parts.get(axis, slice(None)) for axis in self.axes)


def _affine(path: str) -> dict[str, str]:
    """The weight and bias of the module at `path`."""
    return {"weight": f"{path}.weight", "bias": f"{path}.bias"}


def _embeddings(a: Architecture) -> Iterator[Activation]:
    width = a.hidden_size
    tables = []
    offset = a.position_offset
    positions = f"{offset}..S+{offset - 1}" if offset else "0..S-1"
    for name, index in (("word", "input_ids"), ("position", positions), ("token_type", "token_type_ids")):
        path = f"embeddings.{name}_embeddings"
        stored = not (name == "position" and a.position_embedding_type == "sinusoidal")
        kind = f"{name}_lookup" if stored else "sinusoids"
        parameters = {"weight": f"bert.{path}.weight"} if stored else {}
        equation = f"E[{index}]" if stored else f"sin(s/10000^(2i/H)), cos(s/10000^(2i/H)), s = {index}"
        yield Activation(path, kind, (), HIDDEN, width, equation, parameters, exact=stored)
        tables.append(path)
    if a.embedding_norm:
        last = "embeddings.LayerNorm"
        equation = "LayerNorm(word + token type + position)"
        yield Activation(last, "norm", tuple(tables), HIDDEN, width, equation, _affine(f"bert.{last}"))
    else:
        last = "embeddings.sum"
        yield Activation(last, "sum", tuple(tables), HIDDEN, width, "word + token type + position")
    yield Activation("embeddings.dropout", "copy", (last,), HIDDEN, width, "identity in eval mode", exact=True)


def _layer(a: Architecture, index: int, hidden: str) -> Iterator[Activation]:
    width, path = a.hidden_size, f"encoder.layer.{index}"
    attention, own = f"{path}.attention.self", f"{path}.attention.output"
    query, key, value = (f"{attention}.{n}" for n in ("query", "key", "value"))

    def row(
        name: str,
        kind: str,
        parents: tuple[str, ...],
        equation: str,
        *,
        parameters: str | None = None,
        axes: tuple[str, ...] = HIDDEN,
        size: int = width,
        exact: bool = False,
    ) -> Activation:
        affine = _affine(f"bert.{parameters}") if parameters else {}
        return Activation(name, kind, parents, axes, size, equation, affine, exact, index)

    for projection in (query, key, value):
        yield row(projection, "linear", (hidden,), "x Wᵀ + b", parameters=projection)
    scores, probs, dropped = (f"{attention}.{n}" for n in ("scores", "probs", "dropout"))
    yield row(scores, "scores", (query, key), "q kᵀ / √d, before the mask", axes=ATTENTION, size=0)
    yield row(probs, "probs", (scores,), "softmax over unmasked keys; 0 elsewhere", axes=ATTENTION, size=0)
    yield row(dropped, "copy", (probs,), "identity in eval mode", axes=ATTENTION, size=0, exact=True)
    context = f"{attention}.context"
    yield row(context, "context", (dropped, value), "probs · v, heads side by side")

    def residual(path: str, inputs: str, skip: str, norm: str) -> Iterator[Activation]:
        dense, dropout, out = f"{path}.dense", f"{path}.dropout", f"{path}.LayerNorm"
        yield row(dense, "linear", (inputs,), "x Wᵀ + b", parameters=dense)
        yield row(dropout, "copy", (dense,), "identity in eval mode", exact=True)
        yield row(out, "norm", (dropout, skip), "LayerNorm(x + skip)", parameters=norm)

    yield from residual(own, context, hidden, f"{own}.LayerNorm")
    inner, act = f"{path}.intermediate.dense", f"{path}.intermediate.intermediate_act_fn"
    yield row(inner, "linear", (f"{own}.LayerNorm",), "x Wᵀ + b", parameters=inner, size=a.intermediate_size)
    yield row(act, a.hidden_act, (inner,), f"{a.hidden_act}(x)", size=a.intermediate_size)
    if a.activation_dropout:
        inner, act = act, f"{path}.intermediate.dropout"
        yield row(act, "copy", (inner,), "identity in eval mode", size=a.intermediate_size, exact=True)
    norm = f"{own}.LayerNorm" if a.shared_layer_norm else f"{path}.output.LayerNorm"
    yield from residual(f"{path}.output", act, f"{own}.LayerNorm", norm)


def _masked_lm(a: Architecture, hidden: str) -> Iterator[Activation]:
    path, width = "cls.predictions", a.hidden_size
    dense, act, norm = (f"{path}.transform.{n}" for n in ("dense", "transform_act_fn", "LayerNorm"))
    yield Activation(dense, "linear", (hidden,), HIDDEN, width, "x Wᵀ + b", _affine(dense))
    yield Activation(act, a.hidden_act, (dense,), HIDDEN, width, f"{a.hidden_act}(x)")
    yield Activation(norm, "norm", (act,), HIDDEN, width, "LayerNorm(x)", _affine(norm))
    tied = {"weight": "bert.embeddings.word_embeddings.weight", "bias": f"{path}.bias"}
    yield Activation(f"{path}.decoder", "linear", (norm,), HIDDEN, a.vocab_size, "x Eᵀ + b, E the word embeddings", tied)
    yield _loss(f"{path}.loss", "masked_lm_loss", f"{path}.decoder", "tokens")


def _next_sentence(a: Architecture, hidden: str) -> Iterator[Activation]:
    pair = "cls.seq_relationship"
    yield Activation(pair, "linear", ("pooler.activation",), SENTENCE, 2, "x Wᵀ + b", _affine(pair))
    yield _loss(f"{pair}.loss", "next_sentence_loss", pair, "pairs, 0 = is next")


def _plain_masked_lm(a: Architecture, hidden: str) -> Iterator[Activation]:
    decoder, size = "cls.predictions.decoder", a.vocab_size
    own = {"weight": f"{decoder}.weight", "bias": "cls.predictions.bias"}
    yield Activation(decoder, "linear", (hidden,), HIDDEN, size, "x Wᵀ + b", own)
    log_probs = "cls.predictions.log_probs"
    yield Activation(log_probs, "log_softmax", (decoder,), HIDDEN, size, "log softmax over the vocabulary")
    yield _loss("cls.predictions.loss", "masked_lm_loss_of_log_probs", log_probs, "tokens")


def _plain_next_sentence(a: Architecture, hidden: str) -> Iterator[Activation]:
    pair = "cls.seq_relationship"
    yield Activation(pair, "first_token_linear", (hidden,), SENTENCE, 2, "W x₀ + b, x₀ the first token", _affine(pair))
    yield Activation(f"{pair}.log_probs", "log_softmax", (pair,), SENTENCE, 2, "log softmax over the two")
    yield _loss(f"{pair}.loss", "next_sentence_loss_of_log_probs", f"{pair}.log_probs", "pairs, 0 = is next")


def _classifier(a: Architecture, inputs: str, axes: tuple[str, ...], classes: int) -> Iterator[Activation]:
    if a.classifier_dropout:
        yield Activation("dropout", "copy", (inputs,), axes, a.hidden_size, "identity in eval mode", exact=True)
        inputs = "dropout"
    yield Activation("classifier", "linear", (inputs,), axes, classes, "x Wᵀ + b", _affine("classifier"))


def _classification(a: Architecture, hidden: str) -> Iterator[Activation]:
    yield from _classifier(a, "pooler.activation", SENTENCE, a.num_labels)
    yield _loss("classifier.loss", "classification_loss", "classifier", "rows")


def _token_classification(a: Architecture, hidden: str) -> Iterator[Activation]:
    yield from _classifier(a, hidden, HIDDEN, a.num_labels)
    yield _loss("classifier.loss", "token_classification_loss", "classifier", "tokens")


def _multiple_choice(a: Architecture, hidden: str) -> Iterator[Activation]:
    """A logit of every row; the rows of one question stand one after the other."""
    yield from _classifier(a, "pooler.activation", SENTENCE, 1)
    yield _loss("classifier.loss", "multiple_choice_loss", "classifier", "questions, its rows as classes")


def _question_answering(a: Architecture, hidden: str) -> Iterator[Activation]:
    """A start logit and an end logit of every position, side by side."""
    span = "qa_outputs"
    yield Activation(span, "linear", (hidden,), HIDDEN, 2, "x Wᵀ + b, start and end", _affine(span))
    losses = (f"{span}.start_loss", f"{span}.end_loss")
    for name, which in zip(losses, ("start", "end"), strict=True):
        equation = f"mean cross entropy over labelled rows, the positions as classes, of the {which} logits"
        yield Activation(name, f"span_{which}_loss", (span,), SCALAR, 0, equation)
    yield Activation(f"{span}.loss", "mean_loss", losses, SCALAR, 0, "(start loss + end loss) / 2")


_HEADS = {
    "masked_lm": _masked_lm,
    "next_sentence": _next_sentence,
    "plain_masked_lm": _plain_masked_lm,
    "plain_next_sentence": _plain_next_sentence,
    "classification": _classification,
    "token_classification": _token_classification,
    "question_answering": _question_answering,
    "multiple_choice": _multiple_choice,
}


def _sentence_embedding(a: Architecture, hidden: str) -> Iterator[Activation]:
    last, width = "sentence_embedding", a.hidden_size
    pooled = f"{last}.pooled" if a.normalize else last
    yield Activation(pooled, f"{POOLING}{a.pooling}", (hidden,), SENTENCE, width, _POOLED[a.pooling])
    if a.normalize:
        yield Activation(last, "unit", (pooled,), SENTENCE, width, "x / |x|")


def _loss(name: str, kind: str, of: str, counted: str) -> Activation:
    """The loss of `of`, a mean over what is counted."""
    what = "negative log-likelihood" if kind.endswith("log_probs") else "cross entropy"
    return Activation(name, kind, (of,), SCALAR, 0, f"mean {what} over labelled {counted}")


def table(a: Architecture) -> dict[str, Activation]:
    """Every activation of architecture `a`, by name, in the order of computation."""
    return {row.name: row for row in _rows(a)}


@lru_cache(maxsize=8)
def _rows(a: Architecture) -> tuple[Activation, ...]:
    rows = list(_embeddings(a))
    hidden = "embeddings.dropout"
    for index in range(a.num_hidden_layers):
        rows += _layer(a, index, hidden)
        hidden = f"encoder.layer.{index}.output.LayerNorm"
    if a.pooler:
        pooler, width = "pooler.dense", a.hidden_size
        equation = "W x₀ + b, x₀ the first token"
        rows.append(Activation(pooler, "first_token_linear", (hidden,), SENTENCE, width, equation, _affine(f"bert.{pooler}")))
        rows.append(Activation("pooler.activation", "tanh", (pooler,), SENTENCE, width, "tanh(x)"))
    for head in _HEADS:
        if head in a.heads:
            rows += _HEADS[head](a, hidden)
    if a.pooling:
        rows += _sentence_embedding(a, hidden)
    losses = tuple(row.name for row in rows if row.name in ("cls.predictions.loss", "cls.seq_relationship.loss"))
    if len(losses) == 2:
        rows.append(Activation("cls.loss", "total_loss", losses, SCALAR, 0, "masked-LM loss + next-sentence loss"))
    return tuple(rows)


def placed(name: str) -> tuple[str, str]:
    """The part of the network that an activation belongs to, for people, and its name within that part."""
    match = _LAYER.fullmatch(name)
    if match:
        return f"layer {match[1]}", match[2]
    part, _, rest = name.partition(".")
    if part == "step":  # of a training run
        number, _, rest = rest.partition(".")
        return f"step {number}", rest
    return (part, rest) if part == "embeddings" else ("pooler and heads", name)


def outputs(a: Architecture) -> tuple[str, ...]:
    """The final hidden state and the logits of every head: a candidate exposes at least one of them."""
    found = [f"encoder.layer.{a.num_hidden_layers - 1}.output.LayerNorm"]
    logits = ("cls.predictions.decoder", "cls.predictions.log_probs", "cls.seq_relationship", "cls.seq_relationship.log_probs")
    rows = table(a)
    return (*found, *(name for name in (*logits, "classifier", "qa_outputs", "sentence_embedding") if name in rows))


def parameter_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Every parameter that the table uses, by Hugging Face's name, with its shape (the tied decoder once)."""
    tables = {
        "word_lookup": a.vocab_size,
        "position_lookup": a.max_position_embeddings,
        "token_type_lookup": a.type_vocab_size,
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
