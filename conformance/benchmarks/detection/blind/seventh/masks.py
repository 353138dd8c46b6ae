"""Mistakes in the masks and in padding."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, probs

_PROBS = ("attention.self.probs",)


def _among(allowed: Tensor, x: Tensor) -> Tensor:
    return x.masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(-1)


def _in_a_window(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    at = torch.arange(x.shape[-1])
    return _among((mask[:, None, None] != 0) & ((at[:, None] - at).abs() <= 2), x)


def _up_to_the_last(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, mask.flip(-1).cumsum(-1).flip(-1))


def _sorted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, mask[mask.sum(-1).argsort(descending=True, stable=True)])


def _first_is_global(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], -1))


def _saturated(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask[:, None, None] == 0, x.min(), x).softmax(-1)


def _in_whole_tiles(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    length = x.shape[-1]
    masked = x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)
    return F.pad(masked, (0, -length % 32)).softmax(-1)[..., :length]


def _within_segments(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    kinds = port.found["embeddings.token_type_embeddings"]
    same = (kinds[:, :, None] == kinds[:, None]).all(-1)
    return _among((mask[:, None, None] != 0) & same[:, None], x)


MISTAKES = (
    Mistake(
        "sliding window",
        "A token attends only to the tokens at a distance of at most 2.",
        "the local layers of ModernBERT or Longformer, in a layer that should be global",
        "first",
        _PROBS,
        "says that attention is limited to a window, or to near tokens",
        {"probs": _in_a_window},
    ),
    Mistake(
        "length up to the last token",
        "All keys up to the last real token are attended to, so that padding on the left and holes are not masked.",
        "a kernel that takes one length for each row, found from the last nonzero of the mask",
        "all",
        _PROBS,
        "says that padding before a real token is attended to, or that the mask is made a length",
        {"probs": _up_to_the_last},
    ),
    Mistake(
        "mask in sorted order",
        "The masks of the rows are in order of length, longest first, while the rows are not.",
        "sorting by length, as pack_padded_sequence requires, of the mask alone",
        "all",
        _PROBS,
        "says that the masks are those of other rows",
        {"probs": _sorted},
    ),
    Mistake(
        "first key always attended to",
        "The first key is attended to even where the mask hides it.",
        "global attention on [CLS], or an attention sink, set at position 0 of rows that are padded on the left",
        "all",
        _PROBS,
        "says that the first key is not masked",
        {"probs": _first_is_global},
    ),
    Mistake(
        "mask saturates",
        "Masked scores are set to the smallest score of the tensor, so that masked keys keep some weight.",
        "an int8 export in which -10000 saturates at the end of the scores' range",
        "first",
        _PROBS,
        "says that masked keys get weight, or that the mask's number is too small",
        {"probs": _saturated},
    ),
    Mistake(
        "rest of the tile not masked",
        "The softmax includes the columns that fill up a tile of 32 keys, with a score of 0, in its sum.",
        "a tiled kernel that loads 0 beyond the length and does not mask it",
        "all",
        _PROBS,
        "says that the probabilities sum to less than 1, or that keys with a score of 0 are added",
        {"probs": _in_whole_tiles},
    ),
    Mistake(
        "segments do not see each other",
        "A token attends only to tokens of its own token type.",
        "a packed-sequence kernel (segment_ids) that is given the token types as numbers of documents",
        "all",
        _PROBS,
        "says that attention does not cross the token types, or the segments",
        {"probs": _within_segments},
    ),
)
