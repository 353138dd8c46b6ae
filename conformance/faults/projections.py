"""Faults of linear layers: the parameters or inputs of another layer, another layout of the weight, no bias or a wrong factor."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from conformance.faults.changes import Altered, Rearranged, other_weight, variance_of, with_parent, with_slack_of_parent
from conformance.faults.fault import LINEARS, Change, Fault, FaultContext, Parameter, parameters_of, with_parameters
from conformance.model.activations import layer_input
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.norm import Norm

_POOLER = "Read the first token of each row: hidden[:, 0]."
_QKV = "Check the order of query, key and value in the fused weight, and split or map it in that order."

SELF = (".query", ".key", ".value")
HIDDEN_STATE = "the last hidden state"


def _exchanged(**whose: str) -> Change:
    """Return the change that gives projections the parameters of others: `query="key"` gives the query those of the key."""

    def change(step: Step, context: FaultContext) -> Step | None:
        path, _, name = step.site.activation.name.rpartition(".")
        parameters = parameters_of(context, f"{path}.{whose[name]}", step) if name in whose else None
        return None if parameters is None else with_parameters(step, **parameters)

    return change


def _fused(reading: Callable[[Array, int], Array]) -> Change:
    """Return the change that reorders the rows of a fused query-key-value weight or bias.

    Args:
        reading: function from the rows (3, O, …) in correct order and the head size to the rows as they are read.
    """

    def change(step: Step, context: FaultContext) -> Step | None:
        path, _, name = step.site.activation.name.rpartition(".")
        names = [end[1:] for end in SELF]
        found = [parameters_of(context, f"{path}.{each}", step) for each in names]
        if None in found or step.value.shape[-1] == step.site.architecture.head_size:
            return None
        own, width = names.index(name), step.site.architecture.head_size
        rows = {kind: np.stack([parameters[kind] for parameters in found if parameters]) for kind in step.site.parameters}
        return with_parameters(step, **{kind: reading(x, width)[own] for kind, x in rows.items()})

    return change


def _alternating(rows: Array, width: int) -> Array:
    """Return rows, stored as row i of query, of key and of value in turn, as if stored as all of query, then key, then value."""
    return rows.swapaxes(0, 1).reshape(rows.shape)


def _pairs_exchanged(weight: Array) -> Array:
    """Return the weight with its columns 2i and 2i + 1 exchanged; unchanged if their number is odd."""
    return weight if weight.shape[1] % 2 else weight.reshape(len(weight), -1, 2)[..., ::-1].reshape(weight.shape)


def _by_head(rows: Array, width: int) -> Array:
    """Return rows, stored as all of query, then key, then value, as if stored head by head with query, key and value of each."""
    return rows.reshape(-1, 3, width, *rows.shape[2:]).swapaxes(0, 1).reshape(rows.shape)


def _by_part(rows: Array, width: int) -> Array:
    """Return rows, stored head by head with query, key and value of each, as if stored as all of query, then key, then value."""
    return rows.reshape(3, -1, width, *rows.shape[2:]).swapaxes(0, 1).reshape(rows.shape)


def _product_scaled(step: Step, factor: float) -> Step:
    return with_parameters(step, weight=factor * step.site.parameters["weight"])


def _scaled(step: Step, factor: float) -> Step:
    return with_parameters(step, **{name: factor * value for name, value in step.site.parameters.items()})


def _of_layer(name: str) -> Change:
    """Return the change to another input: an activation of the same layer, or the layer's input if the name is empty."""

    def change(step: Step, context: FaultContext) -> Step | None:
        layer = step.site.activation.layer
        if layer is None:
            return None
        return with_parent(step, context, f"encoder.layer.{layer}.{name}" if name else layer_input(layer))

    return change


def _transposed(step: Step, _: FaultContext) -> Step | None:
    weight = step.site.parameters["weight"]
    return with_parameters(step, weight=weight.T) if weight.shape[0] == weight.shape[1] else None


def _reshaped(step: Step, _: FaultContext) -> Step | None:
    """Return the layer with a weight (in, out) reinterpreted in memory order as (out, in); None for a square weight.

    For a square weight, the reinterpretation is the transpose, which `_transposed` gives.
    """
    weight = step.site.parameters["weight"]
    return with_parameters(step, weight=weight.T.reshape(weight.shape)) if weight.shape[0] != weight.shape[1] else None


def _bias(factor: float) -> Change:
    """Return the change that multiplies the bias by a factor; it gives None for a layer without a bias."""

    def change(step: Step, _: FaultContext) -> Step | None:
        bias = step.site.parameters.get("bias")
        return None if bias is None else with_parameters(step, bias=factor * bias)

    return change


def _reversed(step: Step, _: FaultContext) -> Step:
    return Rearranged(step, lambda x: x[..., ::-1])


def _pre_norm(step: Step, context: FaultContext) -> Step | None:
    """Return the layer with a normalized input, with the parameters of the norm that follows its sub-layer.

    None is returned for keys and values of encoder states, which that norm does not receive.
    """
    own = step.site.activation
    if own.layer is None or "state" in own.axes:
        return None
    attention, is_attention, _ = own.name.partition("self.")
    norm = (attention if is_attention else own.name.removesuffix("intermediate.dense")) + "output.LayerNorm"
    site = replace(step.site, parameters=context.network.site(norm).parameters)
    return step.replaced(parents=(Norm(site, step.parents[0]).value,))


def _pooled(token: Callable[[Array, Mask], Array | None]) -> Change:
    """Return the change by which the pooler reads `token(hidden, mask)`, (B, H), in place of the first token."""

    def change(step: Step, _: FaultContext) -> Step | None:
        found = token(step.parents[0], step.site.batch.mask)
        return None if found is None else step.replaced(parents=(np.concatenate([found[:, None], step.parents[0][:, 1:]], 1),))

    return change


def _last_unmasked(hidden: Array, mask: Mask) -> Array:
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
    return as_array(hidden[np.arange(len(last)), last])


def _by_length(hidden: Array, mask: Mask) -> Array:
    return as_array(hidden[np.arange(len(mask)), np.maximum(mask.sum(1) - 1, 0)])


def _reading(source: str, *, first: bool = False) -> Change:
    """Return the change by which a head reads the activation `source`, or the first token of each of its rows if `first`."""

    def change(step: Step, context: FaultContext) -> Step | None:
        last = layer_input(step.site.architecture.num_hidden_layers)
        found = context.values.get(last if source == HIDDEN_STATE else source)
        if found is None:
            return None
        read = found[:, 0] if first else found
        return step.replaced(parents=(read,)) if read.shape == step.parents[0].shape else None

    return change


def _reading_mean(step: Step, context: FaultContext) -> Step | None:
    """Return the step of a head that reads the mean of the outputs of the last two layers."""
    layers = step.site.architecture.num_hidden_layers
    found = [context.values.get(layer_input(layer)) for layer in (layers, layers - 1)] if layers > 1 else []
    known = [x for x in found if x is not None and x.shape == step.parents[0].shape]
    if len(known) < 2:
        return None
    mean = (known[0] + known[1]) / 2.0
    read = step.replaced(parents=(mean,))
    return with_slack_of_parent(read, lambda _, arithmetic: 2.0 * arithmetic.storage.rounding_variance(mean))


def _reading_norm(own: bool) -> Change:
    """Return the change by which a head reads a norm of the last hidden state, with the last norm's parameters or without any."""

    def change(step: Step, context: FaultContext) -> Step | None:
        name = layer_input(step.site.architecture.num_hidden_layers)
        if step.site.activation.parents[0] != name or context.network.table[name].kind != "norm":
            return None
        site = context.network.site(name)
        parameters = {"weight": np.ones_like(site.parameters["weight"]), "bias": np.zeros_like(site.parameters["bias"])}
        norm = Norm(site if own else replace(site, parameters=parameters), step.parents[0])
        return with_slack_of_parent(step.replaced(parents=(norm.value,)), lambda _, arithmetic: variance_of(norm, arithmetic))

    return change


def _capped(step: Step, square: float) -> Step:
    k = square**0.5
    return step if k == 0.0 else Altered(step, lambda inner: np.tanh(k * inner.value) / k, _of_function)


def _log_softmax(step: Step, _: FaultContext) -> Step | None:
    return Altered(step, lambda inner: as_array(log_softmax(inner.value, -1)), _of_function) if step.value.shape[-1] > 1 else None


def _of_function(altered: Altered, arithmetic: Arithmetic) -> Array:
    """Return the variance of a few more roundings, of numbers no larger than the larger of both results."""
    larger = np.maximum(np.abs(altered.value), np.abs(altered.inner.value))
    return as_array(4.0 * arithmetic.storage.rounding_variance(larger))


def _left_out(step: Step, _: FaultContext) -> Step | None:
    same = step.value.shape == step.parents[0].shape
    return Altered(step, lambda inner: inner.parents[0]) if same else None


def _handed_on(step: Step, _: FaultContext) -> Step | None:
    same = step.site.activation.width == step.parents[0].shape[-1]
    return Altered(step, lambda inner: inner.parents[0][:, 0]) if same else None


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of linear layers, including the pooler and the heads."""
    linear, pooled = frozenset({"linear"}), frozenset({"first_token_linear"})
    for a, b in (("query", "key"), ("query", "value"), ("key", "value")):
        yield Fault(f"{a}-{b}-swapped", linear, f"{a} and {b} have each other's parameters", "jsbaan/transformer-from-scratch#1",
                    _exchanged(**{a: b, b: a}), "a fused product unpacked in another order", (f".{a}", f".{b}"),
                    all_steps_or_none=True,
                    fix=_QKV)
    yield Fault("qkv-rotated", linear, "query has key's parameters, key value's and value query's", "constructed",
                _exchanged(query="key", key="value", value="query"), "a fused product unpacked in another order", SELF,
                all_steps_or_none=True, fix=_QKV)
    for a in SELF:
        for b in (end for end in SELF if end != a):
            yield Fault(f"{a[1:]}-from-{b[1:]}", linear, f"{a[1:]} has {b[1:]}'s parameters", "constructed",
                        _exchanged(**{a[1:]: b[1:]}), "a copied line; a name mapped twice", (a,), after_failure=True,
                        fix="Load each projection's own parameters.")
    for end, reading, file, read in (("", _by_head, "part by part (query, key, value)", "head by head"),
                                     ("-file", _by_part, "head by head", "part by part (query, key, value)"),
                                     ("-rows", _alternating, "row by row in turn", "part by part (query, key, value)")):
        yield Fault(f"qkv-interleaved{end}", linear, f"the rows of a fused matrix, stored {file}, are read {read}",
                    "constructed", _fused(reading), "the row order of Megatron and GPT-NeoX confused with that of other models",
                    SELF, after_failure=True, all_steps_or_none=True, fix=_QKV)
    yield Fault("next-sentence-order", LINEARS, "the two logits are exchanged", "transformers#836, transformers#524", _reversed,
                "logit 1 taken as is-next; in BERT, logit 0 is", ("seq_relationship",),
                fix="Logit 0 means that the second sentence follows the first, logit 1 that it does not.")
    yield Fault("class-labels-reversed", linear, "the class logits are in reverse order", "constructed", _reversed, "",
                ("classifier",),
                fix="Keep the order of the checkpoint's classifier rows (id2label).")
    yield Fault("span-ends-exchanged", linear, "the start logits and the end logits are exchanged", "constructed", _reversed,
                "the two rows of qa_outputs exchanged", ("qa_outputs",),
                fix="Of the last axis of qa_outputs, index 0 is the start and index 1 the end.")
    yield Fault("weight-transposed", LINEARS, "the weight is transposed", "DeepLearningExamples#528", _transposed,
                "(in, out) kernels of TensorFlow and JAX loaded as (out, in)",
                equation="y = x W + b",
                fix="Transpose the kernel when it is loaded; in a registration, `transposed(…)` says so.")
    yield Fault("weight-reshaped", LINEARS, "the weight is reshaped where it must be transposed", "constructed", _reshaped,
                "(in, out) kernels converted to (out, in) by reshape or view",
                equation="W read row by row from the elements of Wᵀ",
                fix="Transpose the kernel when it is loaded.")
    yield Fault("weight-pairs-exchanged", LINEARS, "neighbouring inputs of the weight are exchanged in pairs", "constructed",
                other_weight(_pairs_exchanged), "four-bit numbers unpacked with the two halves of a byte exchanged",
                after_failure=True, combined_after_failure=True,
                equation="y = Σ_i (x_(2i) w_(2i+1) + x_(2i+1) w_(2i)) + b",
                fix="Unpack the low half of each byte first.")
    yield Fault("weight-reversed", LINEARS, "the output features are in reverse order", "constructed", _reversed,
                equation="y_i = x W_(O−1−i)ᵀ + b_(O−1−i)",
                fix="Keep the order of the weight's rows.")
    yield Fault("bias-missing", LINEARS, "the bias is not added", "vllm#46835", _bias(0.0),
                "bias=False, or a tied bias that was dropped",
                equation="y = x Wᵀ",
                fix="Give the layer a bias and load it.")
    yield Fault("bias-twice", LINEARS, "the bias is added twice", "transformers#2928, FARM#533", _bias(2.0),
                "a layer that has a bias, and the same bias added after it",
                equation="y = x Wᵀ + 2 b",
                fix="Add the bias once.")
    yield Fault(
        "product-scaled", LINEARS, "the product is multiplied by {value} before the bias", "constructed",
        cause="1/√H before a tied decoder, as in T5; a quantised weight's scale left out or applied twice", after_failure=True,
        parameter=Parameter("factor", lambda _: 1.0, lambda step: step.parents[0].shape[-1] ** -0.5, _product_scaled, least=-16.0),
        equation="y = c x Wᵀ + b",
        fix="Multiply by the weight as it is, without a factor.",
    )
    yield Fault(
        "result-scaled", LINEARS, "the result is multiplied by {value}", "constructed",
        cause="1/√d folded into the query's product, in code that scales the scores as well", after_failure=True,
        parameter=Parameter("factor", lambda _: 1.0, lambda step: step.site.architecture.head_size**-0.5, _scaled, least=-16.0),
        equation="y = c (x Wᵀ + b)",
        fix="Return the product with its bias, without a factor.",
    )
    yield Fault("feed-forward-parallel", linear, "the feed-forward network reads the layer's input, not the attention's output",
                "constructed, after GPT-J", _of_layer(""), "parallel attention and feed-forward, as in GPT-J and PaLM",
                (".intermediate.dense",), after_failure=True,
                equation="y = layer input · Wᵀ + b",
                fix="Feed intermediate.dense the output of attention.output.LayerNorm.")
    yield Fault("activation-bypassed", linear, "it reads intermediate.dense, bypassing the activation function", "constructed",
                _of_layer("intermediate.dense"), "a variable that was not renamed", (".output.dense",), after_failure=True,
                equation="y = (x W₁ᵀ + b₁) W₂ᵀ + b₂",
                fix="Feed output.dense the result of the activation function.")
    yield Fault("attention-bypassed", linear, "it reads the values, bypassing the attention's probabilities", "constructed",
                _of_layer("attention.self.value"), "attention left out", (".attention.output.dense",), after_failure=True,
                equation="y = v Wᵀ + b",
                fix="Feed attention.output.dense the context, probabilities times values.")
    yield Fault("pre-norm", linear, "the input is normalised first (pre-LN)", "annotated-transformer#110", _pre_norm,
                "the order of GPT-2 and of the Annotated Transformer", (*SELF, ".intermediate.dense"),
                equation="y = LayerNorm(x) Wᵀ + b",
                fix="Feed the sub-layer its input without a norm; the norm comes after the residual.")
    yield Fault("pooler-token", pooled, "the last token is read, not the first", "constructed",
                _pooled(lambda hidden, _: hidden[:, -1]),
                fix=_POOLER)
    yield Fault("pooler-last-unmasked", pooled, "the last token that is not padding is read, not the first one", "constructed",
                _pooled(_last_unmasked), "as in models that read from left to right",
                fix=_POOLER)
    yield Fault("pooler-last-by-length", pooled, "the token is read whose index is the number of unmasked tokens less one",
                "constructed", _pooled(_by_length), "a decoder's classification head, which takes padding to be at the right",
                after_failure=True,
                fix=_POOLER)
    yield Fault("pooler-second-token", pooled, "the second token is read, not the first", "constructed",
                _pooled(lambda hidden, _: hidden[:, 1] if hidden.shape[1] > 1 else None),
                fix=_POOLER)
    yield Fault("projection-missing", linear, "the layer is left out: its input is returned unchanged", "constructed",
                _left_out, "heads that are concatenated and not projected; a head's transform that is not built",
                (*SELF, ".attention.output.dense", "transform.dense"), after_failure=True,
                equation="y = x",
                fix="Apply the layer: x Wᵀ + b, with the checkpoint's parameters.")
    yield Fault("pooler-missing", pooled, "the first token is returned unchanged", "codertimo/BERT-pytorch#95, candle#2601",
                _handed_on, "a BERT without pooler", ("pooler.dense",),
                equation="y = x₀",
                fix="Apply pooler.dense and tanh to the first token.")
    sentence = ("seq_relationship", "classifier")
    yield Fault("head-without-pooler", linear, "the head reads the first token's hidden state, bypassing the pooler", "constructed",
                _reading(HIDDEN_STATE, first=True), "add_pooling_layer=False, or hidden[:, 0] in place of the pooled output",
                sentence,
                equation="y = x₀ Wᵀ + b",
                fix="Feed the head the pooler's output.")
    yield Fault("head-without-tanh", linear, "the head reads the pooler's product, before its tanh", "constructed",
                _reading("pooler.dense"), "", sentence,
                equation="y = (W_p x₀ + b_p) Wᵀ + b",
                fix="Feed the head the pooler's output, after its tanh.")
    yield Fault("decoder-without-transform", linear, "the decoder reads the hidden state, bypassing the head's transform",
                "constructed", _reading(HIDDEN_STATE), "logits = hidden @ embeddings.T", ("predictions.decoder",),
                equation="y = x Eᵀ + b",
                fix="Feed the decoder the transform's output.")
    at, heads = ("pooler.dense", "transform.dense"), ("predictions.decoder", *sentence)
    yield Fault("heads-read-mean", LINEARS, "it reads the mean of the last two layers, not the last one", "constructed",
                _reading_mean, "features of several layers, as of ELMo", at, after_failure=True,
                equation="y = (x + x′) / 2 · Wᵀ + b, x and x′ the outputs of the last two layers",
                fix="Feed the heads the output of the last layer.")
    for own, end, which in ((False, "", "without parameters"), (True, "-twice", "with the last norm's parameters")):
        yield Fault(f"heads-read-norm{end}", LINEARS, f"it reads a norm of the last hidden state, {which}", "constructed",
                    _reading_norm(own), "the final norm of encoders that normalise before each sub-layer", at, after_failure=True,
                    equation="y = LayerNorm(x) Wᵀ + b",
                    fix="Feed the heads the output of the last layer, which is already normalised.")
    yield Fault(
        "logits-capped", linear, "the logits z are capped by a tanh: tanh(k z) / k with k² = {value}", "constructed, after Gemma 2",
        cause="final_logit_softcapping of another model", only=heads,
        # The effect is proportional to k², so k² is the number that is estimated.
        parameter=Parameter("k²", lambda _: 0.0, lambda _: 1.0 / 900.0, _capped,
                quantity="square of the factor in a tanh that caps the logits"),
        equation="y = tanh(k (x Wᵀ + b)) / k",
        fix="Return the product with its bias, without a tanh.",
    )
    yield Fault("logits-log-softmax", linear, "the result is the log-softmax of the logits", "constructed", _log_softmax,
                "a log-softmax that belongs to the loss", heads, after_failure=True,
                equation="y = log softmax(x Wᵀ + b)",
                fix="Return logits; torch.nn.functional.cross_entropy applies log-softmax itself.")
# fmt: on
