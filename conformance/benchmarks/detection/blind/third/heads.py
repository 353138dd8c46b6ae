"""Mistakes in the pooler and in the heads."""

import math

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port
from conformance.benchmarks.detection.blind.third.tools import norm_with

_POOLER = ("pooler.dense",)
_POOLED = ("pooler.activation",)
_TRANSFORM = ("cls.predictions.transform.dense",)
_TRANSFORMED = ("cls.predictions.transform.transform_act_fn",)
_NORM = ("cls.predictions.transform.LayerNorm",)
_DECODER = ("cls.predictions.decoder",)
_NEXT = ("cls.seq_relationship",)
_BOTH = (*_POOLER, *_TRANSFORM)

_WORDS = "bert.embeddings.word_embeddings.weight"
_BIAS = "cls.predictions.bias"


def _decoded(port: Port, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_WORDS], port.weights[_BIAS])


def _mean(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden.mean(1))


def _mean_unbiased(port: Port, _: None, hidden: Tensor) -> Tensor:
    return F.linear(hidden.mean(1), port.weights["bert.pooler.dense.weight"])


def _second_token(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:, 1])


def _first_row(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:1, 0].expand(len(hidden), -1))


def _before(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.layer_before()


def _averaged(port: Port, _: None, hidden: Tensor) -> Tensor:
    return (hidden + port.layer_before()) / 2


def _final_norm(port: Port, _: None, hidden: Tensor) -> Tensor:
    return F.layer_norm(hidden, hidden.shape[-1:], eps=port.architecture.layer_norm_eps)


def _no_bias(port: Port, _: None, hidden: Tensor) -> Tensor:
    return F.linear(hidden, port.weights["cls.predictions.transform.dense.weight"])


def _embeddings_norm(port: Port, _: None, x: Tensor) -> Tensor:
    return norm_with(port, "bert.embeddings.LayerNorm", x, port.architecture.layer_norm_eps)


def _default_epsilon(port: Port, _: None, x: Tensor) -> Tensor:
    return norm_with(port, "cls.predictions.transform.LayerNorm", x, 1e-5)


def _with_input(port: Port, _: None, x: Tensor) -> Tensor:
    last = port.architecture.num_hidden_layers - 1
    hidden = port.found[f"encoder.layer.{last}.output.LayerNorm"]
    return norm_with(port, "cls.predictions.transform.LayerNorm", x + hidden, port.architecture.layer_norm_eps)


def _suppressed(port: Port, _: None, x: Tensor) -> Tensor:
    logits = _decoded(port, x)
    logits[..., :4] = -10000
    return logits


def _rolled_bias(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_WORDS], port.weights[_BIAS].roll(1))


def _as_t5(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x / math.sqrt(port.architecture.hidden_size), port.weights[_WORDS])


def _unpooled(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", hidden[:, 0])


def _log_probs(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", pooled).log_softmax(-1)


def _reversed_unbiased(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return F.linear(pooled, port.weights["cls.seq_relationship.weight"].flip(0))


def _before_tanh(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear("cls.seq_relationship", port.linear("bert.pooler.dense", hidden[:, 0]))


MISTAKES = (
    Mistake(
        "pooler of the mean", "The pooler reads the mean of all tokens, padding included.", "sentence embedders' pooling", "first",
        _POOLER, "says that the pooler reads a mean", {"pooler": _mean},
    ),
    Mistake(
        "pooler of the mean, unbiased", "The pooler reads the mean of all tokens and has no bias: two changes.",
        "ELECTRA's and sentence embedders' heads, mixed", "first", _POOLER,
        "says that the pooler reads a mean, that its bias is missing, or both", {"pooler": _mean_unbiased},
    ),
    Mistake(
        "pooler of the second token", "The pooler reads the second token.", "tokenizers that put a start token before [CLS]",
        "first", _POOLER, "says that the pooler reads another token", {"pooler": _second_token},
    ),
    Mistake(
        "pooler of the first row", "All rows have the pooled vector of the batch's first row.", "hidden[0, 0], broadcast", "first",
        _POOLER, "says that all rows of the batch are the first, or another row's", {"pooler": _first_row},
    ),
    Mistake(
        "pooler's hard tanh", "The pooler's activation is clamped to −1 … 1 and otherwise linear.", "devices without a tanh",
        "first", _POOLED, "says that tanh is a hard tanh or clamp", {"pooler_activation": lambda port, _, x: x.clamp(-1, 1)},
    ),
    Mistake(
        "pooler's tanh twice", "tanh is applied twice.", "a head with a tanh of its own over pooler_output", "first", _POOLED,
        "says that tanh is applied twice", {"pooler_activation": lambda port, _, x: x.tanh().tanh()},
    ),
    Mistake(
        "heads of the layer before", "Pooler and heads read the last layer but one.", "hidden_states[-2], with an early exit",
        "first", _BOTH, "says that the heads read another layer, or skip the last", {"last": _before},
    ),
    Mistake(
        "heads of two layers' mean", "Pooler and heads read the mean of the last two layers.", "weighted sums of layers, as ELMo's",
        "first", _BOTH, "says that the heads read a mean of layers, or another input", {"last": _averaged},
    ),
    Mistake(
        "final norm", "The last hidden state is normed once more, without parameters.", "pre-norm encoders' last norm", "first",
        _BOTH, "says that a norm is applied once more", {"last": _final_norm},
    ),
    Mistake(
        "transform without bias", "The transform's bias is missing.", "heads of newer encoders", "first", _TRANSFORM,
        "says that the bias is missing", {"transform": _no_bias},
    ),
    Mistake(
        "transform's tanh", "The transform's activation is tanh.", "the pooler's class used for the transform", "first",
        _TRANSFORMED, "says that it is tanh", {"transform_activation": lambda port, _, x: x.tanh()},
    ),
    Mistake(
        "transform's tanh form of GELU", "The transform's GELU has its tanh form.", "hidden_act of the head written out", "first",
        _TRANSFORMED, "says that it is the tanh form of GELU",
        {"transform_activation": lambda port, _, x: F.gelu(x, approximate="tanh")},
    ),
    Mistake(
        "transform's norm is the embeddings'", "The transform's norm has the embeddings' parameters.",
        "names that end with LayerNorm, matched from the front", "first", _NORM, "says that the parameters are another norm's",
        {"transform_norm": _embeddings_norm},
    ),
    Mistake(
        "transform's epsilon is PyTorch's", "The transform's epsilon is 1e-5.", "nn.LayerNorm(H) in a head", "first", _NORM,
        "says that the epsilon is 1e-5, or larger, or gives no name", {"transform_norm": _default_epsilon},
    ),
    Mistake(
        "transform with a residual", "The hidden state is added before the transform's norm.",
        "a residual norm's class used for the head", "first", _NORM, "says that a residual is added, or gives no name",
        {"transform_norm": _with_input},
    ),
    Mistake(
        "special tokens suppressed", "The logits of the first four tokens are −10000.", "servers that never predict [PAD] or [CLS]",
        "first", _DECODER, "says that logits of some tokens are replaced or masked, or gives no name", {"decoder": _suppressed},
    ),
    Mistake(
        "logits at a temperature", "The logits are divided by 1.1.", "a temperature calibrated and merged into the model", "first",
        _DECODER, "says that the logits are scaled", {"decoder": lambda port, _, x: _decoded(port, x) / 1.1},
    ),
    Mistake(
        "logits capped at thirty", "The logits x are 30 · tanh(x / 30).", "Gemma 2's final_logit_softcapping", "first", _DECODER,
        "says that the logits are capped by a tanh", {"decoder": lambda port, _, x: 30 * (_decoded(port, x) / 30).tanh()},
    ),
    Mistake(
        "decoder's bias one token off", "The decoder's bias is shifted by one token.", "a vocabulary with one token put in front",
        "first", _DECODER, "says that the bias is permuted or shifted, or another one", {"decoder": _rolled_bias},
    ),
    Mistake(
        "decoder as T5's", "The decoder's input is divided by √H and there is no bias: two changes.", "T5's tied head", "first",
        _DECODER, "says that the bias is missing, that the product is scaled, or both", {"decoder": _as_t5},
    ),
    Mistake(
        "next sentence without pooling", "The next-sentence head reads the first token's hidden state.",
        "heads over last_hidden_state[:, 0]", "first", _NEXT, "says that the pooler is skipped", {"next_sentence": _unpooled},
    ),
    Mistake(
        "next sentence before tanh", "The next-sentence head reads the pooler's product.",
        "exports that drop the pooler's activation", "first", _NEXT, "says that the head reads the pooler before tanh, or skips it",
        {"next_sentence": _before_tanh},
    ),
    Mistake(
        "next sentence's log-probabilities", "The head's output is its log-softmax.", "a loss moved into the model", "first", _NEXT,
        "says that a log-softmax is applied", {"next_sentence": _log_probs},
    ),
    Mistake(
        "next sentence reversed, unbiased", "The rows of the weight are exchanged and there is no bias: two changes.",
        "is_next and not_next exchanged in an export without biases", "first", _NEXT,
        "says that the classes are exchanged, that the bias is missing, or both", {"next_sentence": _reversed_unbiased},
    ),
)  # fmt: skip
