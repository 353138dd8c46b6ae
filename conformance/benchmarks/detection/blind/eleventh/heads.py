"""Mistakes in the pooler and in the heads."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port

_TRANSFORM, _DECODER, _NEXT = "cls.predictions.transform", "cls.predictions.decoder", "cls.seq_relationship"
_TABLE = "bert.embeddings.word_embeddings.weight"


def _of_mean(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden.mean(1))


def _identity(port: Port, _: None, x: Tensor) -> Tensor:
    return x


def _no_bias(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_TABLE])


def _untied(port: Port, _: None, x: Tensor) -> Tensor:
    table = port.weights[_TABLE]
    drawn = torch.randn(table.shape, generator=torch.Generator().manual_seed(0)) * port.architecture.initializer_range
    return F.linear(x, drawn.to(table.dtype), port.weights["cls.predictions.bias"])


def _unpooled(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_NEXT, hidden[:, 0])


def _exchanged(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_NEXT, pooled).flip(-1)


def _one_before(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.layer_before()


MISTAKES = (
    Mistake(
        "mean into the pooler",
        "The pooler gets the mean over the tokens, padding as well.",
        "mean pooling, as sentence encoders have it, before BERT's own pooler",
        "all",
        ("pooler.dense",),
        "says that the pooler gets a mean, and not the first token",
        {"pooler": _of_mean},
    ),
    Mistake(
        "pooler without tanh",
        "The pooled output is that of the linear layer.",
        "classifiers that take nn.Linear for the pooler; common in exercises",
        "all",
        ("pooler.activation",),
        "says that the pooler's tanh is missing",
        {"pooler_activation": _identity},
    ),
    Mistake(
        "decoder without bias",
        "The logits of the masked-LM head lack their bias.",
        "nn.Linear(bias=False) for the tied decoder, cls.predictions.bias being a parameter beside it",
        "all",
        (_DECODER,),
        "says that the bias of the decoder is missing",
        {"decoder": _no_bias},
    ),
    Mistake(
        "decoder not tied",
        "The decoder has weights drawn at random.",
        "cls.predictions.decoder.weight 'newly initialized' as in transformers issue 10348: checkpoints that do not hold it, "
        "and code that does not tie it to the word embeddings",
        "all",
        (_DECODER,),
        "says that the decoder's weights are not the word embeddings, or not loaded",
        {"decoder": _untied},
    ),
    Mistake(
        "transform without activation",
        "The transform of the masked-LM head has no GELU.",
        "a head of a linear layer and a norm; common in exercises",
        "all",
        (f"{_TRANSFORM}.transform_act_fn",),
        "says that the activation of the transform is missing",
        {"transform_activation": _identity},
    ),
    Mistake(
        "next sentence without the pooler",
        "The next-sentence head gets the last layer's first token, not the pooled one.",
        "sequence_output[:, 0] for pooled_output; common in exercises",
        "all",
        (_NEXT,),
        "says that the next-sentence head gets the hidden state, or that its input is not pooled",
        {"next_sentence": _unpooled},
    ),
    Mistake(
        "next sentence the other way round",
        "The two logits of the next-sentence head are exchanged.",
        "a head of which 1 means 'is next', where BERT's 0 does; common in exercises",
        "all",
        (_NEXT,),
        "says that the two logits, or the two rows of the weight, are exchanged",
        {"next_sentence": _exchanged},
    ),
    Mistake(
        "heads on the last layer but one",
        "The pooler and the masked-LM head get what goes into the last layer.",
        "hidden_states[-2], as features are often taken: bert-as-service's pooling_layer is -2 by default",
        "all",
        ("pooler.dense", f"{_TRANSFORM}.dense"),
        "says that the heads get another layer's output, or the last layer's input",
        {"last": _one_before},
    ),
)
