"""Mistakes in the probabilities: masks, windows, the softmax and its tiles."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, probs

_PROBS = ("attention.self.probs",)


def _places(length: int) -> Tensor:
    places = torch.arange(length)
    return places[:, None] - places


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)


def _minus_ten(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + (1 - mask[:, None, None].to(x.dtype)) * -10).softmax(-1)


def _times(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[:, None, None].to(x.dtype)).softmax(-1)


def _masked_after(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * mask[:, None, None].to(x.dtype)


def _over_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _masked(x, mask).softmax(1)


def _quiet(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    masked = _masked(x, mask)
    zero = torch.zeros_like(masked[..., :1])
    return torch.cat([masked, zero], -1).softmax(-1)[..., :-1]


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, :, None] == 0, torch.finfo(x.dtype).min).softmax(-1)


def _next_row(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, mask.roll(1, 0))


def _lengths(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, (torch.arange(mask.shape[1]) < mask.sum(-1, keepdim=True)).long())


def _window(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _masked(x, mask).masked_fill(_places(x.shape[-1]).abs() > 5, torch.finfo(x.dtype).min).softmax(-1)


def _not_itself(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _masked(x, mask).masked_fill(_places(x.shape[-1]) == 0, torch.finfo(x.dtype).min).softmax(-1)


def _causal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _masked(x, mask).masked_fill(_places(x.shape[-1]) < 0, torch.finfo(x.dtype).min).softmax(-1)


def _by_blocks(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    blocks = _masked(x, mask).view(*x.shape[:-1], -1, 4)
    return (blocks.softmax(-1) / blocks.shape[-2]).flatten(-2) * mask[:, None, None].to(x.dtype)


def _not_rescaled(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    blocks = _masked(x, mask).view(*x.shape[:-1], -1, 4)
    running = blocks.amax(-1).cummax(-1).values
    weights = (blocks - running[..., None]).exp().flatten(-2) * mask[:, None, None].to(x.dtype)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)


def _first_key(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    open_first = mask.clone()
    open_first[:, 0] = 1
    return probs(port, layer, x, open_first)


def _windowed_after(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * mask[:, None, None].to(x.dtype) * (_places(x.shape[-1]).abs() <= 5).to(x.dtype)


def _unmasked(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1)


MISTAKES = (
    Mistake(
        "mask of minus ten", "Masked keys have 10 subtracted from their scores.", "−10000 scaled down for a quantised graph", "all",
        _PROBS, "says that the mask's number is too small, or that masked keys are attended to a little", {"probs": _minus_ten},
    ),
    Mistake(
        "mask by multiplication", "The scores of masked keys are 0 before the softmax.", "masks of ones and zeros that multiply",
        "all", _PROBS, "says that masked scores are 0, or that the mask multiplies", {"probs": _times},
    ),
    Mistake(
        "mask after the softmax", "Masked probabilities are set to 0 and the others not normalised again.",
        "in-place edits of weights", "last", _PROBS, "says that the mask is applied after the softmax", {"probs": _masked_after},
    ),
    Mistake(
        "softmax over heads", "The softmax is over the heads.", "nn.Softmax() of four axes, whose implicit axis is 1", "all",
        _PROBS, "says that the softmax is over another axis, or over the heads", {"probs": _over_heads},
    ),
    Mistake(
        "softmax plus one", "The softmax's denominator has 1, e⁰, in addition.", "`add_zero_attn`, or Miller's quiet softmax",
        "all", _PROBS, "says that the denominator has one more term, or a key of zeros", {"probs": _quiet},
    ),
    Mistake(
        "mask of queries", "The mask is applied to queries and not to keys.", "mask[:, None, :, None]", "all", _PROBS,
        "says that the mask is on queries, or that padding is attended to", {"probs": _of_queries},
    ),
    Mistake(
        "mask of the row before", "Each row has the mask of the row before it in the batch.", "rows sorted by length, masks not",
        "all", _PROBS, "says that the mask is another row's", {"probs": _next_row},
    ),
    Mistake(
        "mask as a length", "The first n keys are attended to, n the number of real tokens.",
        "kernels given sequence lengths, as FasterTransformer's", "all", _PROBS,
        "says that the mask is taken for a length, or that padding must be at the right", {"probs": _lengths},
    ),
    Mistake(
        "window in some layers", "Keys farther away than 5 are not attended to.", "ModernBERT's alternating local attention",
        "some", _PROBS, "says that attention is local, or in a window", {"probs": _window},
    ),
    Mistake(
        "diagonal masked", "A token does not attend to itself.", "locality self-attention of small ViTs", "first", _PROBS,
        "says that the diagonal is masked", {"probs": _not_itself},
    ),
    Mistake(
        "first layer causal", "Later keys are not attended to in the first layer.", "is_causal left on for one block", "first",
        _PROBS, "says that attention is causal", {"probs": _causal},
    ),
    Mistake(
        "softmax in each tile", "The softmax is over tiles of 4 keys, whose results are averaged.",
        "tiles without shared statistics", "all", _PROBS, "says that the softmax is over blocks of keys", {"probs": _by_blocks},
    ),
    Mistake(
        "online softmax without rescaling", "Earlier tiles of 4 keys keep their own running maximum.",
        "flash attention without the factor exp(m_old − m_new)", "some", _PROBS,
        "says that the online softmax does not rescale earlier tiles, or gives no name", {"probs": _not_rescaled},
    ),
    Mistake(
        "first key always open", "The first key is attended to though it is masked.", "guards against rows without any key", "all",
        _PROBS, "says that the first key is not masked, or that the mask is not applied to some keys", {"probs": _first_key},
    ),
    Mistake(
        "mask and window after the softmax", "Padding and far keys are set to 0 after the softmax: two changes.",
        "edits of attention maps that hooks make", "all", _PROBS,
        "says that the mask is applied after the softmax, or that attention is local", {"probs": _windowed_after},
    ),
    Mistake(
        "no mask in later layers", "Padding is attended to in all layers but the first.", "a mask consumed by the first block",
        "later", _PROBS, "says that the mask is missing", {"probs": _unmasked},
    ),
)  # fmt: skip
