"""Mistakes in the pooler and in the heads."""

from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port

_DECODER, _NEXT = "cls.predictions.decoder", "cls.seq_relationship"
_TRANSFORM = "cls.predictions.transform"


def _bias_twice(port: Port, _: None, x: Tensor) -> Tensor:
    return OPERATIONS["decoder"](port, None, x) + port.weights["cls.predictions.bias"]


def _no_bias(port: Port, _: None, x: Tensor) -> Tensor:
    return F.linear(x, port.weights["bert.embeddings.word_embeddings.weight"])


def _same(port: Port, _: None, x: Tensor) -> Tensor:
    return x


def _last_token(port: Port, _: None, hidden: Tensor) -> Tensor:
    return port.linear("bert.pooler.dense", hidden[:, -1])


def _other_order(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_NEXT, pooled).flip(-1)


def _of_first_token(port: Port, _: None, pooled: Tensor, hidden: Tensor) -> Tensor:
    return port.linear(_NEXT, hidden[:, 0])


MISTAKES = (
    Mistake(
        "decoder bias added twice",
        "The bias of the vocabulary is added twice to the masked-token logits.",
        "transformers issue 2957 and pull request 2928: the bias of the linear layer and that of the head are one",
        "all",
        (_DECODER,),
        "says that the decoder's bias is added twice",
        {"decoder": _bias_twice},
    ),
    Mistake(
        "decoder bias dropped",
        "The masked-token logits have no bias.",
        "vLLM pull request 46835: the bias of an output layer with tied weights is skipped with its weight",
        "all",
        (_DECODER,),
        "says that the decoder's bias is missing",
        {"decoder": _no_bias},
    ),
    Mistake(
        "masked tokens without a transform",
        "The last hidden state goes into the decoder without dense layer, activation and norm of the head.",
        "transformers issue 12215, and language-model heads of other models",
        "all",
        (f"{_TRANSFORM}.dense", f"{_TRANSFORM}.transform_act_fn", f"{_TRANSFORM}.LayerNorm"),
        "says that the head's transform, its dense layer, activation and norm, is missing",
        {"transform": _same, "transform_activation": _same, "transform_norm": _same},
    ),
    Mistake(
        "pooler without tanh",
        "The pooled output is the dense layer's, without tanh.",
        "bojone/SimCSE issue 11; the paper does not mention the tanh (google-research/bert issue 43)",
        "all",
        ("pooler.activation",),
        "says that the pooler's tanh is missing",
        {"pooler_activation": _same},
    ),
    Mistake(
        "pooler reads the last position",
        "The pooler reads the hidden state at the last position of a row instead of the first.",
        "pooling as for decoders, and confusion of hidden_states[-1] with [:, 0]; transformers issue 415",
        "all",
        ("pooler.dense",),
        "says that the pooler reads the last position instead of the first",
        {"pooler": _last_token},
    ),
    Mistake(
        "is next comes second",
        "The two logits of the next sentence are exchanged.",
        "osainz59/Ask2Transformers issue 5 and uclanlp/visualbert issue 26: index 0 is that B follows A",
        "all",
        (_NEXT,),
        "says that the two next-sentence logits are exchanged",
        {"next_sentence": _other_order},
    ),
    Mistake(
        "next sentence without the pooler",
        "The next-sentence logits are of the first token's hidden state instead of the pooled output.",
        "codertimo/BERT-pytorch, which has no pooler (issue 95); common in exercises",
        "all",
        (_NEXT,),
        "says that the next-sentence head reads the hidden state instead of the pooled output",
        {"next_sentence": _of_first_token},
    ),
)
