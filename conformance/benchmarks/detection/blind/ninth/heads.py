"""Mistakes in the pooler and in the heads."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights

_POOLER, _POOLED, _DECODER, _SENTENCE = "pooler.dense", "pooler.activation", "cls.predictions.decoder", "cls.seq_relationship"
_TABLE, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"


def _of_last_token(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:, -1])


def _of_mean(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden.mean(1))


def _no_tanh(port: Port, _: None, x: Tensor) -> Tensor:
    return x


def _of_hidden(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_SENTENCE, hidden[:, 0])


def _swap_classes(weights: Weights, layers: tuple[int, ...]) -> None:
    for name in ("weight", "bias"):
        weights[f"{_SENTENCE}.{name}"] = weights[f"{_SENTENCE}.{name}"].flip(0)


def _bias_twice(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["decoder"](port, None, x) + port.weights[_BIAS]


def _no_bias(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[_TABLE])


def _of_last_layer(port: Port, _: None, x: Tensor) -> Tensor:
    last = port.architecture.num_hidden_layers - 1
    return OPERATIONS["decoder"](port, None, port.found[f"encoder.layer.{last}.output.LayerNorm"])


MISTAKES = (
    Mistake(
        "last token pooled",
        "The pooler takes the last token, not the first.",
        "hidden[:, -1] of decoder models and of recurrent networks; asked about in transformers issue 415",
        "all",
        (_POOLER,),
        "says that the pooler takes the last token, or the wrong token",
        {"pooler": _of_last_token},
    ),
    Mistake(
        "mean pooled",
        "The pooler takes the mean of all positions, padding as well.",
        "transformers issue 8148: GlobalAveragePooling1D over BERT's output",
        "all",
        (_POOLER,),
        "says that the pooler takes the mean over the tokens",
        {"pooler": _of_mean},
    ),
    Mistake(
        "pooler without tanh",
        "The pooler's output is not put through tanh.",
        "the pooler written as one linear; transformers issue 7540 shows how easily it is overlooked",
        "all",
        (_POOLED,),
        "says that the pooler's tanh is missing",
        {"pooler_activation": _no_tanh},
    ),
    Mistake(
        "next sentence from the hidden state",
        "The head for the next sentence takes the first token's hidden state, not the pooler's output.",
        "bowang-lab/Transformer-GCN-QA issue 29",
        "all",
        (_SENTENCE,),
        "says that the head for the next sentence takes the first hidden state, or leaves out the pooler",
        {"next_sentence": _of_hidden},
    ),
    Mistake(
        "next sentence's classes swapped",
        "Class 0 of the head for the next sentence is what should be class 1.",
        "labels in which 1 means that a sentence follows; in BERT's checkpoints 0 does",
        "all",
        (_SENTENCE,),
        "says that the two classes of the head for the next sentence are swapped",
        load=_swap_classes,
    ),
    Mistake(
        "decoder's bias twice",
        "The bias of the vocabulary is added twice.",
        "FARM issue 533: the bias is tied to the decoder and is added after it, too",
        "all",
        (_DECODER,),
        "says that the decoder's bias is added twice",
        {"decoder": _bias_twice},
    ),
    Mistake(
        "decoder without bias",
        "The logits are the product with the word embeddings alone.",
        "transformers issue 1460: the decoder is a linear without bias, and the bias is easily lost",
        "all",
        (_DECODER,),
        "says that the decoder's bias is missing",
        {"decoder": _no_bias},
    ),
    Mistake(
        "logits of the last layer",
        "The decoder takes the last hidden states; dense, GELU and norm of the head are left out of the way.",
        "a head for the masked words of one linear; common in exercises",
        "all",
        (_DECODER,),
        "says that the decoder takes the last layer's output, or that the head's transform is left out",
        {"decoder": _of_last_layer},
    ),
)
