"""Mistakes in the pooler, in the heads and in their losses."""

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
    masked_lm,
    next_sentence,
    override,
    parameter,
    widely,
)
from conformance.benchmarks.detection.steps import ChoiceLoss, Linear
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL

PAIR, PAIR_LOSS, TOKENS_LOSS = "cls.seq_relationship", "cls.seq_relationship.loss", "cls.predictions.loss"
SPANS, DECODER = "qa_outputs", "cls.predictions.decoder"
TRANSFORM = tuple(f"cls.predictions.transform.{name}" for name in ("transform_act_fn", "LayerNorm"))


def _pooled(a: Architecture) -> bool:
    return a.pooler


def _tied(a: Architecture) -> bool:
    return "masked_lm" in a.heads


def _classified(a: Architecture) -> bool:
    return "classification" in a.heads


def _answers(a: Architecture) -> bool:
    return "question_answering" in a.heads


def _chooses(a: Architecture) -> bool:
    return "multiple_choice" in a.heads


def _pooler(model: Bert) -> Pooler:
    assert model.pooler
    return model.pooler


def _predictions(model: Bert) -> Predictions:
    assert model.cls.predictions
    return model.cls.predictions


def _pair(model: Bert) -> Classifier | PlainClassifier:
    assert model.cls.seq_relationship
    return model.cls.seq_relationship


def _last_unmasked(hidden: Tensor, mask: Tensor) -> Tensor:
    position = torch.arange(mask.shape[1], device=mask.device)
    return hidden[torch.arange(len(hidden), device=mask.device), (position * mask).argmax(-1)]


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def _largest(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask[:, :, None] == 0, torch.finfo(hidden.dtype).min).amax(1)


# Incorrect sentence vectors, from the hidden state (B, S, H) and the mask (B, S).
_SENTENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pooler-token": lambda hidden, mask: hidden[:, -1],
    "pooler-last-unmasked": _last_unmasked,
    "pooler-last-by-length": lambda hidden, mask: hidden[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1],
    "pooler-mean": _mean,
    "pooler-second-token": lambda hidden, mask: hidden[:, min(1, hidden.shape[1] - 1)],
    "pooler-max": _largest,
    "pooler-mean-with-padding": lambda hidden, mask: hidden.mean(1),
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "pooler-activation-missing": lambda x: x,
    "pooler-sigmoid": torch.sigmoid,
    "pooler-relu": torch.relu,
    "pooler-gelu": F.gelu,
    "activation-hard-tanh": F.hardtanh,
}


def _sentence(name: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    return in_place(name, lambda model: override(_pooler(model).dense, "sentence", wrong), "pooler.dense", suits=_pooled)


def _activation(name: str, wrong: Callable[[Tensor], Tensor]) -> Plant:
    return in_place(
        name, lambda model: setattr(_pooler(model).activation, "function", widely(wrong)), "pooler.activation", suits=_pooled
    )


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


def _without_transform(model: Bert) -> None:
    """Compute the transform but do not use it."""
    own = _predictions(model)
    transform, decoder = own.transform, own.decoder
    assert transform

    def forward(hidden: Tensor) -> Tensor:
        transform(hidden)
        logits: Tensor = decoder(hidden)
        return logits

    override(own, "forward", forward)


def _transform(model: Bert) -> Transform:
    found = _predictions(model).transform
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
    decoder = _predictions(model).decoder
    decoder.weight, _ = initial(decoder.weight)


def _backwards(linear: Linear) -> None:
    linear.weight, linear.bias = parameter(linear.weight.flip(0)), parameter(linear.bias.flip(0))


def _classes_backwards(model: Bert) -> None:
    """Reverse the order of the class logits."""
    assert model.classifier
    _backwards(model.classifier)


def _other_label(labels: Tensor) -> Tensor:
    """Use label 1 for is-next."""
    return torch.where(labels == IGNORED_LABEL, labels, 1 - labels)


def _zero_dropped(labels: Tensor) -> Tensor:
    """Treat label 0 as an ignored label."""
    return labels.masked_fill(labels == 0, IGNORED_LABEL)


def _all_tokens(model: Bert) -> None:
    """Divide the sum over labelled tokens by the number of all tokens."""
    loss = _predictions(model).loss
    loss.reduction = "sum"
    right = loss.forward
    override(loss, "forward", lambda logits, labels: right(logits, labels) / labels.numel())


def _summed(model: Bert) -> None:
    """Sum over labelled tokens instead of taking the mean."""
    _predictions(model).loss.reduction = "sum"


def _shifted(model: Bert) -> None:
    """Shift the labels by one token to the left."""
    override(_predictions(model).loss, "labels", lambda labels: F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL))


def _spans(model: Bert) -> Spans:
    assert model.qa_outputs
    return model.qa_outputs


def _exchanged(model: Bert) -> None:
    """Exchange the labels of start and end."""
    override(_spans(model), "positions", lambda inputs: (inputs.end_positions, inputs.start_positions))


def _choice_loss(model: Bert) -> ChoiceLoss:
    loss = model.classifier and model.classifier.loss
    assert isinstance(loss, ChoiceLoss)
    return loss


def _interleaved(model: Bert) -> None:
    """Arrange the logits with one column for each question."""
    override(_choice_loss(model), "questions", lambda logits, count: logits.view(-1, count).T)


def _one_by_one(model: Bert) -> None:
    """Compute the binary cross entropy of each choice, over the labelled questions."""

    def each(logits: Tensor, labels: Tensor) -> Tensor:
        kept = labels != IGNORED_LABEL
        right = F.one_hot(labels[kept], logits.shape[-1]).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits[kept], right)

    override(_choice_loss(model), "each", each)


PLANTS = (
    *(_sentence(name, wrong) for name, wrong in _SENTENCES.items()),
    *(_activation(name, wrong) for name, wrong in _ACTIVATIONS.items()),
    in_place("pooler-missing", _no_pooler, "pooler.dense", suits=_pooled),
    in_place("head-without-pooler", _reads_hidden, PAIR, suits=_of_pair),
    in_place("head-without-tanh", _reads_product, PAIR, suits=_of_pair),
    in_place("decoder-without-transform", _without_transform, "cls.predictions.decoder", suits=_tied),
    in_place("transform-order", _other_order, *TRANSFORM, suits=_tied),
    in_place("transform-norm-first", _norm_first, *TRANSFORM, suits=_tied),
    in_place("decoder-without-norm", _without_norm, "cls.predictions.decoder", suits=_tied),
    in_place("transform-residual", _with_residual, TRANSFORM[1], suits=_tied),
    in_place("heads-read-mean", _reads_mean, "pooler.dense", suits=_pooled_deep),
    in_place("heads-read-norm", _reads_norm(False), "pooler.dense", suits=_pooled),
    in_place("heads-read-norm-twice", _reads_norm(True), "pooler.dense", suits=_pooled),
    in_place("decoder-untied", _untied, "cls.predictions.decoder", suits=_tied),
    in_place("logits-capped", lambda m: after(_predictions(m).decoder, widely(_capped)), DECODER, suits=_tied),
    in_place("logits-suppressed", lambda m: after(_predictions(m).decoder, _suppressed), DECODER, suits=_tied),
    in_place("logits-log-softmax", lambda m: after(_pair(m), lambda x: F.log_softmax(x, -1)), PAIR, suits=_of_pair),
    in_place("next-sentence-order", lambda model: _backwards(_pair(model)), PAIR, suits=next_sentence),
    in_place("next-sentence-label", lambda m: override(_pair(m).loss, "labels", _other_label), PAIR_LOSS, suits=next_sentence),
    in_place("loss-ignores-zero", lambda m: override(_pair(m).loss, "labels", _zero_dropped), PAIR_LOSS, suits=next_sentence),
    in_place("loss-denominator", _all_tokens, TOKENS_LOSS, suits=masked_lm),
    in_place("loss-labels-shifted", _shifted, TOKENS_LOSS, suits=masked_lm),
    in_place("span-ends-exchanged", lambda model: _backwards(_spans(model)), SPANS, suits=_answers),
    in_place("span-labels-exchanged", _exchanged, f"{SPANS}.start_loss", f"{SPANS}.end_loss", suits=_answers),
    in_place("span-loss-summed", lambda m: override(_spans(m).loss, "forward", torch.add), f"{SPANS}.loss", suits=_answers),
    in_place("choices-interleaved", _interleaved, "classifier.loss", suits=_chooses),
    in_place("choices-one-by-one", _one_by_one, "classifier.loss", suits=_chooses),
    in_place("loss-summed", _summed, TOKENS_LOSS, suits=masked_lm),
    in_place("class-labels-reversed", _classes_backwards, "classifier", suits=_classified),
)
