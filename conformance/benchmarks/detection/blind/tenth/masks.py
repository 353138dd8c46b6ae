"""Mistakes in the attention's mask."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, probs

_PROBS = "attention.self.probs"


def _multiplied(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[:, None, None]).softmax(-1)


def _inverted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, 1 - mask)


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, :, None] == 0, torch.finfo(x.dtype).min).softmax(-1)


def _causal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    allowed = torch.ones_like(x, dtype=torch.bool).tril() & (mask[:, None, None] != 0)
    return x.masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(-1)


def _after_softmax(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * mask[:, None, None]


def _added(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None]).softmax(-1)


def _types_for_mask() -> dict[str, Operation]:
    """The token types mask the keys, and the types themselves are 0, as the second of three arguments has the third's place."""
    kept: dict[str, Tensor] = {}

    def no_types(port: Port, _: None, types: Tensor) -> Tensor:
        kept["types"] = types
        return OPERATIONS["types"](port, None, torch.zeros_like(types))

    def masked(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
        return probs(port, layer, x, kept["types"])

    return {"types": no_types, "probs": masked}


MISTAKES = (
    Mistake(
        "scores multiplied by the mask",
        "The scores of keys that are not attended to become 0, and go into the softmax.",
        "scores * mask; gluonts pull request 1401 and tsai issue 171 have the like",
        "some",
        (_PROBS,),
        "says that the mask does not mask, that it multiplies the scores, or that masked keys get weight",
        {"probs": _multiplied},
    ),
    Mistake(
        "mask inverted",
        "The padding is attended to, and nothing else, except where there is no padding.",
        "masks in which True means left out, as in mlwithme/TransformerTranslation issue 6 and transformers pull request 38094",
        "all",
        (_PROBS,),
        "says that the mask is inverted",
        {"probs": _inverted},
    ),
    Mistake(
        "mask along the queries",
        "The mask is laid over the rows of the scores, not over their columns.",
        "mask[:, None, :, None]; common in exercises",
        "first",
        (_PROBS,),
        "says that the mask is applied to the queries, or along the wrong axis",
        {"probs": _of_queries},
    ),
    Mistake(
        "causal",
        "A token attends to those before it and to itself only.",
        "a decoder's attention, as in sentence-transformers issue 3725, or is_causal=True",
        "all",
        (_PROBS,),
        "says that the attention is causal, or that later keys are masked",
        {"probs": _causal},
    ),
    Mistake(
        "mask after the softmax",
        "The probabilities of masked keys are set to 0, and the others are left as they are, so that they do not add up to 1.",
        "pytorch-image-models pull request 2236",
        "last",
        (_PROBS,),
        "says that the mask is applied after the softmax, or that the probabilities do not add up to 1",
        {"probs": _after_softmax},
    ),
    Mistake(
        "boolean mask added",
        "1 is added to the scores of the keys that are attended to, and 0 to those of the others.",
        "diffusers issue 14342; mlverse/torch pull request 1208 distinguishes the two kinds of mask",
        "all",
        (_PROBS,),
        "says that the mask does not mask, that 0 and 1 are added to the scores, or that masked keys get weight",
        {"probs": _added},
    ),
    Mistake(
        "token types for the mask",
        "The token types mask the keys, and every token is of type 0.",
        "arguments by position, in the order of another version: transformers issue 1788",
        "all",
        ("embeddings.token_type_embeddings", _PROBS),
        "says that the token types are ignored and that the mask is wrong, or that the two are swapped",
        _types_for_mask(),
    ),
)
