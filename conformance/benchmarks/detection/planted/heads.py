"""Mistakes in the pooler and in the heads; those in their losses are in `losses`."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.heads import Classifier, PlainClassifier, Pooler, Predictions, Spans, Transform
from conformance.benchmarks.detection.planted.initial import initial
from conformance.benchmarks.detection.planted.plant import (
    Plant,
    after,
    in_place,
    kept,
    many_layers,
    next_sentence,
    override,
    parameter,
    widely,
)
from conformance.benchmarks.detection.steps import Linear
from conformance.model.architecture import Architecture

PAIR, SPANS, DECODER = "cls.seq_relationship", "qa_outputs", "cls.predictions.decoder"
TRANSFORM = tuple(f"cls.predictions.transform.{name}" for name in ("transform_act_fn", "LayerNorm"))


def _pooled(a: Architecture) -> bool:
    return a.pooler


def _tied(a: Architecture) -> bool:
    return "masked_lm" in a.heads


def _classified(a: Architecture) -> bool:
    return "classification" in a.heads


def _answers(a: Architecture) -> bool:
    return "question_answering" in a.heads


def _pooler(model: Bert) -> Pooler:
    assert model.pooler
    return model.pooler


def predictions_head(model: Bert) -> Predictions:
    """Return the masked-LM head."""
    assert model.cls.predictions
    return model.cls.predictions


def pair_head(model: Bert) -> Classifier | PlainClassifier:
    """Return the next-sentence head."""
    assert model.cls.seq_relationship
    return model.cls.seq_relationship


def spans_head(model: Bert) -> Spans:
    """Return the question-answering head."""
    assert model.qa_outputs
    return model.qa_outputs


def _last_unmasked(hidden: Tensor, mask: Tensor) -> Tensor:
    position = torch.arange(mask.shape[1], device=mask.device)
    return hidden[torch.arange(len(hidden), device=mask.device), (position * mask).argmax(-1)]


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Weight the tokens by their positions, counted from 1, in at least float32, and round once."""
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    weights = mask[:, :, None] * torch.arange(1, mask.shape[1] + 1, device=mask.device)[:, None].to(wide.dtype)
    return ((wide * weights).sum(1) / weights.sum(1)).to(hidden.dtype)


def _largest(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask[:, :, None] == 0, torch.finfo(hidden.dtype).min).amax(1)


def _sentence(name: str, description: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    """Return a mistake in the sentence vector, computed from the hidden state (B, S, H) and the mask (B, S)."""

    def install(model: Bert) -> None:
        override(_pooler(model).dense, "sentence", wrong)

    return in_place(name, description, install, "pooler.dense", suits=_pooled)


def _activation(name: str, description: str, wrong: Callable[[Tensor], Tensor]) -> Plant:
    def install(model: Bert) -> None:
        _pooler(model).activation.function = widely(wrong)

    return in_place(name, description, install, "pooler.activation", suits=_pooled)


def _no_pooler(model: Bert) -> None:
    """Return the first token's hidden state without the pooler's product."""
    override(_pooler(model).dense, "product", lambda x: x)


def _reads_hidden(model: Bert) -> None:
    """Let the next-sentence head read the first token's hidden state."""
    right = model.cls.pair
    override(model.cls, "pair", lambda hidden, pooled, mask: right(hidden, hidden[:, 0], mask))


def _reads_product(model: Bert) -> None:
    """Let the next-sentence head read the pooler's product, before its activation."""
    right, products = model.cls.pair, kept(_pooler(model).dense)
    override(model.cls, "pair", lambda hidden, pooled, mask: right(hidden, products.pop(), mask))


def _pooled_twice(model: Bert) -> None:
    """Let the next-sentence head read the pooler's product and tanh of the pooled output."""
    right, own = model.cls.pair, _pooler(model)
    weight, bias = own.dense.weight, own.dense.bias
    override(model.cls, "pair", lambda hidden, pooled, mask: right(hidden, F.linear(pooled, weight, bias).tanh(), mask))


def _without_transform(model: Bert) -> None:
    """Compute the transform but do not use it."""
    own = predictions_head(model)
    transform, decoder = own.transform, own.decoder
    assert transform

    def forward(hidden: Tensor) -> Tensor:
        transform(hidden)
        logits: Tensor = decoder(hidden)
        return logits

    override(own, "forward", forward)


def _transform(model: Bert) -> Transform:
    found = predictions_head(model).transform
    assert found
    return found


def _suppressed(logits: Tensor) -> Tensor:
    """Set the logits of the first four ids to a constant."""
    return torch.cat([torch.full_like(logits[..., :4], -10000.0), logits[..., 4:]], -1)


def _capped(logits: Tensor) -> Tensor:
    return 20.0 * torch.tanh(logits / 20.0)


def _other_order(model: Bert) -> None:
    """Compute the norm before the activation function; each result is exposed under the other's name."""
    own = _transform(model)
    norm, function = own.LayerNorm.forward, own.transform_act_fn.forward
    override(own.transform_act_fn, "forward", norm)
    override(own.LayerNorm, "forward", function)


def _norm_first(model: Bert) -> None:
    """Compute the norm before the activation function, each exposed under its own name.

    The result that is passed on is still that of the norm's module.
    """
    own = _transform(model)

    def forward(hidden: Tensor) -> Tensor:
        product = own.dense(hidden)
        normed: Tensor = own.LayerNorm.normalise(product)
        own.transform_act_fn(normed)
        handed_on: Tensor = own.LayerNorm(product)
        return handed_on

    override(own, "forward", forward)


def _without_norm(model: Bert) -> None:
    """Compute the norm but do not use it."""
    own = _transform(model)

    def forward(hidden: Tensor) -> Tensor:
        activated: Tensor = own.transform_act_fn(own.dense(hidden))
        own.LayerNorm(activated)
        return activated

    override(own, "forward", forward)


def _with_residual(model: Bert) -> None:
    """Add the transform's input before its norm."""
    own = _transform(model)

    def forward(hidden: Tensor) -> Tensor:
        normed: Tensor = own.LayerNorm(own.transform_act_fn(own.dense(hidden)), hidden)
        return normed

    override(own, "forward", forward)


def _reads_mean(model: Bert) -> None:
    """Let the pooler read the mean of the outputs of the last two layers."""
    layers, right = model.architecture.num_hidden_layers, _pooler(model).forward
    found = [kept(model.layer(layer)) for layer in (layers - 2, layers - 1)]

    def forward(_: Tensor, mask: Tensor) -> Tensor:
        states = torch.stack([outputs.pop() for outputs in found])
        pooled: Tensor = right(widely(lambda x: x.mean(0))(states), mask)
        return pooled

    override(_pooler(model), "forward", forward)


def _reads_norm(own: bool) -> Callable[[Bert], None]:
    """Return the change by which the pooler reads a norm of the last hidden state, with or without the last norm's parameters."""

    def install(model: Bert) -> None:
        norm, right = model.layer(model.architecture.num_hidden_layers - 1).output.LayerNorm, _pooler(model).forward

        def forward(hidden: Tensor, mask: Tensor) -> Tensor:
            plain = F.layer_norm(hidden, hidden.shape[-1:], eps=norm.eps)
            pooled: Tensor = right(norm.normalise(hidden) if own else plain, mask)
            return pooled

        override(_pooler(model), "forward", forward)

    return install


def _pooled_deep(a: Architecture) -> bool:
    return a.pooler and many_layers(a)


def _of_pair(a: Architecture) -> bool:
    return a.pooler and "next_sentence" in a.heads


def _untied(model: Bert) -> None:
    """Give the decoder a weight of its own, as torch initializes it."""
    decoder = predictions_head(model).decoder
    decoder.weight, _ = initial(decoder.weight)


def _backwards(linear: Linear) -> None:
    linear.weight, linear.bias = parameter(linear.weight.flip(0)), parameter(linear.bias.flip(0))


def _classes_backwards(model: Bert) -> None:
    """Reverse the order of the class logits."""
    assert model.classifier
    _backwards(model.classifier)


PLANTS = (
    _sentence("pooler-token", "the last position", lambda hidden, mask: hidden[:, -1]),
    _sentence("pooler-last-unmasked", "the last unmasked position", _last_unmasked),
    _sentence("pooler-last-by-length", "the token n − 1, n the number of unmasked tokens",
              lambda hidden, mask: hidden[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1]),
    _sentence("pooler-mean", "the mean over unmasked positions", _mean),
    _sentence("pooler-second-token", "the second position", lambda hidden, mask: hidden[:, min(1, hidden.shape[1] - 1)]),
    _sentence("pooler-max", "the largest of each feature over unmasked positions", _largest),
    _sentence("pooler-mean-with-padding", "the mean over all positions", lambda hidden, mask: hidden.mean(1)),
    _sentence("pooler-weighted-mean", "the mean over unmasked positions, weighted by position", _weighted_mean),
    _sentence("pooler-weighted-mean-with-padding", "the mean over all positions, weighted by position",
              lambda hidden, mask: _weighted_mean(hidden, torch.ones_like(mask))),
    _activation("pooler-normalised", "tanh divided by its length", lambda x: F.normalize(x.tanh(), dim=-1)),
    in_place("pooler-twice", "the next-sentence head reads the pooled output after the pooler's product and tanh", _pooled_twice,
             PAIR, suits=lambda a: a.pooler and next_sentence(a)),
    _activation("pooler-activation-missing", "no tanh", lambda x: x),
    _activation("pooler-sigmoid", "sigmoid for tanh", torch.sigmoid),
    _activation("pooler-relu", "max(x, 0) for tanh", torch.relu),
    _activation("pooler-gelu", "GELU for tanh", F.gelu),
    _activation("activation-hard-tanh", "clipped to ±1, for the pooler's tanh", F.hardtanh),
    in_place("pooler-missing", "pooler.dense hands on the first token as it is", _no_pooler, "pooler.dense", suits=_pooled),
    in_place("head-without-pooler", "the next-sentence head reads the first token's hidden state",
             _reads_hidden, PAIR, suits=_of_pair),
    in_place("head-without-tanh", "the next-sentence head reads pooler.dense", _reads_product, PAIR, suits=_of_pair),
    in_place("decoder-without-transform", "the masked-LM decoder reads the hidden state",
             _without_transform, "cls.predictions.decoder", suits=_tied),
    in_place("transform-order", "LayerNorm, then the activation function, each shown in the other's place",
             _other_order, *TRANSFORM, suits=_tied),
    in_place("transform-norm-first", "the norm reads the product, and the activation function the norm",
             _norm_first, *TRANSFORM, suits=_tied),
    in_place("decoder-without-norm", "the decoder reads the transform's activation function",
             _without_norm, "cls.predictions.decoder", suits=_tied),
    in_place("transform-residual", "LayerNorm(f(x Wᵀ + b) + x)", _with_residual, TRANSFORM[1], suits=_tied),
    in_place("heads-read-mean", "the pooler reads the mean of the outputs of the last two layers",
             _reads_mean, "pooler.dense", suits=_pooled_deep),
    in_place("heads-read-norm", "the pooler reads LayerNorm(x), with neither γ nor β, of the last hidden state x",
             _reads_norm(False), "pooler.dense", suits=_pooled),
    in_place("heads-read-norm-twice", "the pooler reads LayerNorm(x), with γ and β of the last norm, of the last hidden state x",
             _reads_norm(True), "pooler.dense", suits=_pooled),
    in_place("decoder-untied", "the masked-LM decoder has weights of its own, randomly initialised",
             _untied, "cls.predictions.decoder", suits=_tied, reported_as="parameters-other"),
    in_place("logits-capped", "20 · tanh(x / 20) of the masked-LM logits x",
             lambda m: after(predictions_head(m).decoder, widely(_capped)), DECODER, suits=_tied),
    in_place("logits-suppressed", "the masked-LM logits of the first four ids are −10000",
             lambda m: after(predictions_head(m).decoder, _suppressed), DECODER, suits=_tied),
    in_place("logits-log-softmax", "log-softmax of the next-sentence logits",
             lambda m: after(pair_head(m), lambda x: F.log_softmax(x, -1)), PAIR, suits=_of_pair),
    in_place("next-sentence-order", "the two logits are exchanged",
             lambda model: _backwards(pair_head(model)), PAIR, suits=next_sentence),
    in_place("span-ends-exchanged", "start and end logits are exchanged",
             lambda model: _backwards(spans_head(model)), SPANS, suits=_answers),
    in_place("class-labels-reversed", "class logits in reverse order", _classes_backwards, "classifier", suits=_classified),
)  # fmt: skip
