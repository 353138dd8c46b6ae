"""The equations of BERT, one expression for each step, over the names of earlier results.

A step is written as in a lecture: `attended` is `layer_norm(x, weight, bias, eps)` of `x = sublayer + skip`. Everything is
called by name: the results of earlier steps of the same layer (`query`, `key`, …), the batch (`ids`, `types`, `mask`, `positions`),
the step's parameters (`weight`, `bias`), the sizes (`heads`, `d`, `H`, `L`), the functions of `detection.tools`, and

- `right()`: the step's right result; `right(mask=1 - mask)` is the right result of another mask;
- `layers[-1].key`: a result of the layer before; `layers[0]` has the embeddings, whose result is called `handed` as a layer's is;
- `p.value`: the parameters of another step, so that `right(**p.value)` has those; `stored[0].value` those of layer 0;
- `again(hidden)`: the result of the whole layer, run once more; `i`: the layer's number.

A mistake (`detection.mistakes`) or a correct variant (`detection.variants`) is another expression of a step, or a function of the
same names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.benchmarks.detection.tools import evaluated
from conformance.model.architecture import Architecture

Formula = str | Callable[..., Any]


@dataclass(frozen=True)
class Wide:
    """What is computed in at least float32 and rounded once."""

    formula: Formula


Expression = Formula | Wide


@dataclass(frozen=True)
class Step:
    """A step of the network.

    Attributes:
        name: the name of its result in the expressions of later steps.
        activation: the name of its result among activations, without the layer's prefix; empty if it is not an activation.
        given: names that only this step has, each with its expression; later ones may use earlier ones.
        expression: the result.
        parameters: what the names of its parameters begin with, if it is not `activation`.
        labels: the name of the labels without which the step is left out.
    """

    name: str
    activation: str
    given: Mapping[str, str]
    expression: Formula
    parameters: str = ""
    labels: str = ""


X = {"x": "hidden"}
LOOKUP, LINEAR, NORM = "F.embedding(rows, weight)", "linear(x, weight, bias)", "layer_norm(x, weight, bias, eps)"
ATTENTION = {"q": "split(query)", "k": "split(key)", "v": "split(value)", "keep": "mask[:, None, None] == 1"}
GELU = {"gelu": "gelu(x)", "gelu_new": "tanh_gelu(x)", "gelu_pytorch_tanh": "tanh_gelu(x)", "relu": "relu(x)"}


def embeddings(a: Architecture) -> tuple[Step, ...]:
    """Return the steps before the layers."""
    summed = {"x": "word + type + position"}
    return (
        Step("word", "embeddings.word_embeddings", {"rows": "ids"}, LOOKUP),
        Step("position", "embeddings.position_embeddings", {"rows": "positions"}, LOOKUP),
        Step("type", "embeddings.token_type_embeddings", {"rows": "types"}, LOOKUP),
        Step("embedded", "embeddings.LayerNorm", summed, NORM)
        if a.embedding_norm
        else Step("embedded", "embeddings.sum", summed, "x"),
        Step("embeddings", "embeddings.dropout", {"x": "embedded"}, "x"),
    )


def layer(a: Architecture) -> tuple[Step, ...]:
    """Return the steps of a layer, which reads `hidden` and hands on `handed`; if it does not run, it is left out."""
    second_norm = "attention.output.LayerNorm" if a.shared_layer_norm else "output.LayerNorm"
    return (
        Step("runs", "", {}, "True"),
        Step("query", "attention.self.query", X, LINEAR),
        Step("key", "attention.self.key", X, LINEAR),
        Step("value", "attention.self.value", X, LINEAR),
        Step("scores", "attention.self.scores", ATTENTION, "q @ k.mT / root"),
        Step("probs", "attention.self.probs", {"keep": ATTENTION["keep"], "x": "hide(scores, keep)"}, "softmax(x)"),
        Step("dropped", "attention.self.dropout", {"x": "probs"}, "x"),
        Step("context", "attention.self.context", ATTENTION, "merge(dropped @ v)"),
        Step("dense", "attention.output.dense", {"x": "context"}, LINEAR),
        Step("dense_dropped", "attention.output.dropout", {"x": "dense"}, "x"),
        Step(
            "attended",
            "attention.output.LayerNorm",
            {"sublayer": "dense_dropped", "skip": "hidden", "x": "sublayer + skip"},
            NORM,
        ),
        Step("inner", "intermediate.dense", {"x": "attended"}, LINEAR),
        Step("activated", "intermediate.intermediate_act_fn", {"x": "inner"}, GELU[a.hidden_act]),
        Step("outer", "output.dense", {"x": "activated"}, LINEAR),
        Step("outer_dropped", "output.dropout", {"x": "outer"}, "x"),
        Step(
            "output",
            "output.LayerNorm",
            {"sublayer": "outer_dropped", "skip": "attended", "x": "sublayer + skip"},
            NORM,
            second_norm,
        ),
        Step("handed", "", {}, "output"),
    )


def heads(a: Architecture) -> Iterator[Step]:
    """Yield the steps after the layers, which read `hidden`, the last layer's result."""
    yield Step("last", "", {}, "hidden")
    if a.pooler:
        yield Step("pooler", "pooler.dense", {"x": "last[:, 0]"}, LINEAR)
        yield Step("pooled", "pooler.activation", {"x": "pooler"}, "tanh(x)")
    yield from _masked_lm(a)
    yield from _next_sentence(a)
    if {"masked_lm", "plain_masked_lm"} & set(a.heads) and {"next_sentence", "plain_next_sentence"} & set(a.heads):
        yield Step("loss", "cls.loss", {"x": "token_loss + pair_loss"}, "x", labels="labels and next_sentence_label")
    yield from _task(a)
    if a.pooling:
        pooled = "mean(last, mask)" if a.pooling == "mean" else "last[:, 0]"
        if a.normalize:
            yield Step("sentence", "sentence_embedding.pooled", {}, pooled)
            yield Step("embedding", "sentence_embedding", {"x": "sentence"}, "normalize(x)")
        else:
            yield Step("embedding", "sentence_embedding", {}, pooled)


def _masked_lm(a: Architecture) -> Iterator[Step]:
    name = "cls.predictions"
    if "masked_lm" in a.heads:
        yield Step("transform", f"{name}.transform.dense", {"x": "last"}, LINEAR)
        yield Step("transform_activated", f"{name}.transform.transform_act_fn", {"x": "transform"}, GELU[a.hidden_act])
        yield Step("transformed", f"{name}.transform.LayerNorm", {"x": "transform_activated"}, NORM)
        yield Step("logits", f"{name}.decoder", {"x": "transformed"}, LINEAR)
        yield _loss("token_loss", f"{name}.loss", "logits", "labels")
    elif "plain_masked_lm" in a.heads:
        yield Step("logits", f"{name}.decoder", {"x": "last"}, LINEAR)
        yield Step("log_probs", f"{name}.log_probs", {"x": "logits"}, "log_softmax(x)")
        yield _loss("token_loss", f"{name}.loss", "log_probs", "labels", "nll(x, y, reduction)")


def _next_sentence(a: Architecture) -> Iterator[Step]:
    name = "cls.seq_relationship"
    if "next_sentence" in a.heads:
        yield Step("pair", name, {"x": "pooled"}, LINEAR)
        yield _loss("pair_loss", f"{name}.loss", "pair", "next_sentence_label")
    elif "plain_next_sentence" in a.heads:
        yield Step("pair", name, {"x": "last[:, 0]"}, LINEAR)
        yield Step("pair_log_probs", f"{name}.log_probs", {"x": "pair"}, "log_softmax(x)")
        yield _loss("pair_loss", f"{name}.loss", "pair_log_probs", "next_sentence_label", "nll(x, y, reduction)")


def _task(a: Architecture) -> Iterator[Step]:
    of_tokens, choices = "token_classification" in a.heads, "multiple_choice" in a.heads
    if of_tokens or choices or "classification" in a.heads:
        labels = "token_labels" if of_tokens else "choice_labels" if choices else "class_labels"
        yield Step("classes", "classifier", {"x": "last" if of_tokens else "pooled"}, LINEAR)
        yield _loss("class_loss", "classifier.loss", "classes.view(len(y), -1)" if choices else "classes", labels)
    if "question_answering" in a.heads:
        both = "start_positions and end_positions"
        yield Step("spans", "qa_outputs", {"x": "last"}, LINEAR)
        yield Step("start_loss", "qa_outputs.start_loss", {"y": "start_positions", "x": "spans[..., 0]"}, CROSS, labels=both)
        yield Step("end_loss", "qa_outputs.end_loss", {"y": "end_positions", "x": "spans[..., 1]"}, CROSS, labels=both)
        yield Step("span_loss", "qa_outputs.loss", {}, "(start_loss + end_loss) / 2", labels=both)


CROSS = "cross_entropy(x, y, reduction)"


def _loss(name: str, activation: str, logits: str, labels: str, expression: str = CROSS) -> Step:
    return Step(name, activation, {"y": labels, "x": logits}, expression, labels=labels)


LINEARS = ("query", "key", "value", "dense", "inner", "outer")
KINDS: Mapping[str, tuple[str, ...]] = {
    "lookups": ("word", "position", "type"),
    "linears": LINEARS,
    "products": (*LINEARS, "pooler", "transform", "logits", "pair", "classes", "spans"),
    "norms": ("embedded", "attended", "output", "transformed"),
    "residuals": ("attended", "output"),
    "functions": ("activated", "transform_activated"),
    "losses": ("token_loss", "pair_loss", "class_loss", "start_loss", "end_loss"),
}
"""Names of several steps at once."""

LAYER_STEPS = frozenset((
    *LINEARS, "linears", "scores", "probs", "dropped", "context", "dense_dropped", "attended", "activated", "outer_dropped",
    "output", "residuals", "handed", "runs", "products", "norms", "functions",
))  # fmt: skip
"""The names of steps, and of several at once, some of which are in a layer."""


@dataclass(frozen=True)
class Change:
    """Another expression of a step.

    Attributes:
        step: the step's name, or a name of `KINDS`.
        expressions: the expressions; several are used in turn, place by place in the order of the network.
        layers: the numbers of the layers in which alone it is changed (−1 is the last), or an expression of `i` and `L` that is
            true for them; None for every place.
    """

    step: str
    expressions: tuple[Expression, ...]
    layers: tuple[int, ...] | str | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the changed steps."""
        return KINDS.get(self.step, (self.step,))


def chosen(layers: tuple[int, ...] | str, count: int) -> set[int]:
    """Return the numbers of the layers in which a step is changed (`Change.layers`), of so many."""
    if isinstance(layers, str):
        return {i for i in range(count) if evaluated(layers, {"i": i, "L": count}.__getitem__)}
    return {layer % count for layer in layers}
