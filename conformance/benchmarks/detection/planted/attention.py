"""Mistakes between the query, key and value projections and the result of attention: scores, masks, softmax, heads."""

import math
from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import Options, Plant, after, in_layer, many_heads, override
from conformance.benchmarks.detection.steps import hidden_keys

SCORES, PROBS, CONTEXT = (f"attention.self.{n}" for n in ("scores", "probs", "context"))

# A function from (B, h, S, S) scores and a (B, S) mask of ones and zeros to probabilities.
Softmax = Callable[[Tensor, Tensor], Tensor]


def _own(model: Bert, layer: int) -> SelfAttention:
    return model.layer(layer).attention.self


def _over_keys(mask: Tensor) -> Tensor:
    """Return the mask of attended keys, (B, 1, 1, S), from a mask (B, S)."""
    return mask[:, None, None, :] == 1


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return hidden_keys(scores, _over_keys(mask))


def _with_mask(change: Callable[[Tensor], Tensor]) -> Softmax:
    """Return the correct softmax under a changed mask; `change` maps (B, S) to (B, S)."""
    return lambda scores, mask: torch.softmax(_masked(scores, change(mask)), -1)


def _inverted(mask: Tensor) -> Tensor:
    """Invert the mask in rows with padding.

    In a row without padding, an additive mask would add the same number to every key, which changes nothing.
    """
    return torch.where((mask == 0).any(-1, keepdim=True), 1 - mask, mask)


def _shifted(mask: Tensor) -> Tensor:
    """Use the mask of key j − 1 for key j."""
    return torch.cat([mask[:, :1], mask[:, :-1]], -1)


def _on_queries(scores: Tensor, mask: Tensor) -> Tensor:
    """Apply the mask along the axis of the queries."""
    return torch.softmax(hidden_keys(scores, mask[:, None, :, None] == 1), -1)


def _with_pairs(pairs: Callable[[Tensor], Tensor]) -> Softmax:
    """Return the correct softmax with further keys hidden; `pairs` makes their (S, S) mask from a square of ones."""

    def softmax(scores: Tensor, mask: Tensor) -> Tensor:
        square = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        return torch.softmax(hidden_keys(scores, _over_keys(mask) & pairs(square)), -1)

    return softmax


def _number(mask: Tensor, scores: Tensor) -> Tensor:
    return mask[:, None, None, :].to(scores.dtype)


def _plus_one(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute exp(s) / (1 + Σ exp(s)), which is the softmax with an additional score of 0."""
    masked = _masked(scores, mask)
    beside = torch.cat([masked, torch.zeros_like(masked[..., :1])], -1)
    return torch.softmax(beside, -1)[..., :-1]


def _raised(scores: Tensor, mask: Tensor, constant: float) -> Tensor:
    """Add a constant to the scores of masked keys, of which the correct mask subtracts it."""
    return torch.softmax(scores + (1.0 - _number(mask, scores)) * constant, -1)


def _lowest_at_attended(scores: Tensor, mask: Tensor) -> Tensor:
    """Add the format's lowest number at keys with mask 1."""
    return torch.softmax(scores + _number(mask, scores) * torch.finfo(scores.dtype).min, -1)


def _tiled(scores: Tensor, mask: Tensor) -> Tensor:
    """Repeat the masks to (B · h, S) by `repeat`, where the scores' rows require `repeat_interleave`."""
    tiled = mask.repeat(scores.shape[1], 1).view(*scores.shape[:2], 1, -1)
    return torch.softmax(hidden_keys(scores, tiled == 1), -1)


def _by_head(scores: Tensor, mask: Tensor) -> Tensor:
    """Hide the j-th unmasked key from head j, unless it is the only one."""
    order, heads = mask.cumsum(-1)[:, None] - 1, torch.arange(scores.shape[1], device=mask.device)[:, None]
    seen = (mask[:, None] == 1) & ((order != heads) | (mask.sum(-1)[:, None, None] == 1))
    return torch.softmax(hidden_keys(scores, seen[:, :, None]), -1)


def _softmax(name: str, description: str, wrong: Softmax, **options: Unpack[Options]) -> Plant:
    def install(model: Bert, layer: int) -> None:
        override(_own(model, layer).probs, "forward", wrong)

    return in_layer(name, description, install, PROBS, **options)


def _split(name: str, description: str, wrong: Callable[[Tensor, int], Tensor]) -> Plant:
    """Return a mistake in the scores' method `split`, which is given the number of heads."""

    def install(model: Bert, layer: int) -> None:
        scores = _own(model, layer).scores
        override(scores, "split", lambda x: wrong(x, scores.heads))

    return in_layer(name, description, install, SCORES, suits=many_heads)


def _merge(name: str, description: str, wrong: Callable[[Tensor], Tensor]) -> Plant:
    """Return a mistake in the context's method `merge`, (B, h, S, d) to (B, S, H)."""

    def install(model: Bert, layer: int) -> None:
        override(_own(model, layer).context, "merge", wrong)

    return in_layer(name, description, install, CONTEXT, suits=many_heads)


def _unscaled(model: Bert, layer: int) -> None:
    """Omit the division by √d."""
    _own(model, layer).scores.root = 1.0


def _transposed(model: Bert, layer: int) -> None:
    """Compute k qᵀ instead of q kᵀ."""
    scores = _own(model, layer).scores
    right = scores.product
    override(scores, "product", lambda query, key: right(key, query))


def _clipped(model: Bert, layer: int) -> None:
    """Clip the scores to ±1."""
    scores = _own(model, layer).scores
    right = scores.product
    override(scores, "product", lambda query, key: right(query, key).clamp(-1.0, 1.0))


def _unsplit(model: Bert, layer: int) -> None:
    """Use a single head of the whole width, whose scores serve all heads."""
    scores = _own(model, layer).scores

    def forward(query: Tensor, key: Tensor) -> Tensor:
        whole = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1] // scores.heads)
        return whole[:, None].expand(-1, scores.heads, -1, -1)

    override(scores, "forward", forward)


def _bias_unscaled(model: Bert, layer: int) -> None:
    """Divide the query's weight by √d, but not its bias; the exposed query remains correct."""
    own = model.layer(layer).attention.self
    scores, root, bias = own.scores, own.scores.root, own.query.bias
    right = scores.forward
    override(scores, "forward", lambda query, key: right(torch.add(query, bias, alpha=root - 1.0), key))


def _first_values(model: Bert, layer: int) -> None:
    """Use the values of the first head for all heads."""
    context = _own(model, layer).context
    right = context.forward

    def forward(probs: Tensor, value: Tensor) -> Tensor:
        heads = probs.shape[1]
        found: Tensor = right(probs, value[..., : value.shape[-1] // heads].repeat(1, 1, heads))
        return found

    override(context, "forward", forward)


def _split_in_turns(x: Tensor, heads: int) -> Tensor:
    """Split (B, S, H) with feature i going to head i mod h."""
    return x.view(*x.shape[:-1], -1, heads).permute(0, 3, 1, 2)


def _merged_in_turns(x: Tensor) -> Tensor:
    """Merge (B, h, S, d) with feature i of head j at i · h + j."""
    return x.permute(0, 2, 3, 1).flatten(2)


def _rows_as_heads(x: Tensor) -> Tensor:
    """Merge (B, h, S, d), read from memory as (h, B, S, d)."""
    rows, heads, *rest = x.shape
    return x.reshape(heads, rows, *rest).permute(1, 2, 0, 3).flatten(2)


def _interleaved(model: Bert, layer: int) -> None:
    """Make the heads the inner part of the width, in scores, in values, and in the merged result."""
    own = _own(model, layer)
    for step in (own.scores, own.context):
        override(step, "split", lambda x, heads=step.heads: _split_in_turns(x, heads))
    override(own.context, "merge", _merged_in_turns)


def _unmoved(model: Bert, layer: int) -> None:
    """Split query, key and value into heads, and merge the result, by reshapes alone."""
    own = _own(model, layer)
    for step in (own.scores, own.context):
        override(step, "split", lambda x, heads=step.heads: x.reshape(len(x), heads, x.shape[1], -1))
    override(own.context, "merge", lambda x: x.reshape(len(x), x.shape[2], -1))


def _turned(x: Tensor, *, neighbours: bool) -> Tensor:
    """Rotate (B, h, S, d) by the angles s / 10000^(2i/d), computed in float32 and rounded once."""
    width = x.shape[-1]
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] / 10000.0 ** (torch.arange(0, width, 2, device=x.device) / width)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    a, b = (wide[..., ::2], wide[..., 1::2]) if neighbours else wide.chunk(2, -1)
    turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    return (torch.stack(turned, -1).flatten(-2) if neighbours else torch.cat(turned, -1)).to(x.dtype)


def _rotary(name: str, description: str, *, neighbours: bool) -> Plant:
    def install(model: Bert, layer: int) -> None:
        scores = _own(model, layer).scores
        right = scores.split
        override(scores, "split", lambda x: _turned(right(x), neighbours=neighbours))

    return in_layer(name, description, install, SCORES, suits=lambda a: a.head_size % 2 == 0)


def _distance(scores: Tensor) -> Tensor:
    at = torch.arange(scores.shape[-1], device=scores.device)
    return (at[:, None] - at).to(scores.dtype)


def _falling(scores: Tensor) -> Tensor:
    """Subtract the ALiBi bias, for a number of heads that is a power of two."""
    heads = scores.shape[1]
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=scores.device) / heads)
    return scores - slopes.to(scores.dtype)[:, None, None] * _distance(scores).abs()


def _biased(scores: Tensor) -> Tensor:
    """Add a bias that differs for each distance and each head."""
    heads = torch.arange(1, scores.shape[1] + 1, device=scores.device, dtype=scores.dtype)
    return scores + torch.sin(heads[:, None, None] * _distance(scores))


def _scores_changed(name: str, description: str, change: Callable[[Tensor], Tensor], **options: Unpack[Options]) -> Plant:
    return in_layer(name, description, lambda model, layer: after(_own(model, layer).scores, change), SCORES, **options)


def _head_zero(model: Bert, layer: int) -> None:
    """Set the second head's context to zero."""
    own = _own(model, layer)
    width = model.architecture.head_size

    def without(context: Tensor) -> Tensor:
        return torch.cat([context[..., :width], torch.zeros_like(context[..., :width]), context[..., 2 * width :]], -1)

    after(own.context, without)


def _context_uniform(model: Bert, layer: int) -> None:
    """Return the mean of the unmasked values; the probabilities are computed but not used."""
    own = _own(model, layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        scores, value = own.scores(own.query(hidden), own.key(hidden)), own.value(hidden)
        own.dropout(own.probs(scores, mask))
        uniform = torch.softmax(_masked(torch.zeros_like(scores), mask), -1)
        context: Tensor = own.context(uniform, value)
        return context

    override(own, "forward", forward)


def _context_of_keys(model: Bert, layer: int) -> None:
    """Compute probs · k instead of probs · v."""
    own = _own(model, layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        query, key = own.query(hidden), own.key(hidden)
        own.value(hidden)
        context: Tensor = own.context(own.dropout(own.probs(own.scores(query, key), mask)), key)
        return context

    override(own, "forward", forward)


PLANTS = (
    _softmax("softmax-temperature", "softmax(s / 2)", lambda s, m: torch.softmax(_masked(s / 2.0, m), -1), value=2.0),
    _softmax("softmax-queries", "softmax over the queries' axis", lambda s, m: torch.softmax(_masked(s, m), -2)),
    _softmax("mask-ignored", "padded keys are attended to", lambda s, m: torch.softmax(s, -1)),
    _softmax("mask-inverted", "only padded keys are attended to where a row has any", _with_mask(_inverted)),
    _softmax("mask-inverted-lowest", "the lowest number is added at attended keys", _lowest_at_attended),
    _softmax("mask-sign", "the largest number is added at masked keys", lambda s, m: _raised(s, m, torch.finfo(s.dtype).max)),
    _softmax("mask-sign-10000", "10000 is added at masked keys", lambda s, m: _raised(s, m, 10000.0),
             dtypes=("float64", "float32")),  # In half formats a score is absorbed, which is `mask-sign`.
    _softmax("mask-on-queries", "the mask is laid along the queries' axis", _on_queries),
    _softmax("mask-constant", "−1 is added at masked keys, too little to hide them",
             lambda s, m: torch.softmax(s - (1.0 - _number(m, s)), -1), value=math.exp(-1.0)),
    _softmax("mask-to-last", "the keys up to the last unmasked one are attended to",
             _with_mask(lambda mask: mask.flip(-1).cumsum(-1).flip(-1).clamp(max=1))),
    _softmax("mask-shifted", "the mask of key j is that of key j − 1, the first one's its own", _with_mask(_shifted)),
    _softmax("mask-multiplied", "scores are multiplied by the mask: masked ones become 0",
             lambda s, m: torch.softmax(s * _number(m, s), -1)),
    _softmax("mask-after-softmax", "probabilities multiplied by the mask, not renormalised",
             lambda s, m: torch.softmax(s, -1) * _number(m, s)),
    _softmax("mask-causal", "later keys are hidden", _with_pairs(torch.tril)),
    _softmax("mask-added-raw", "the mask's ones and zeros are added to the scores",
             lambda s, m: torch.softmax(s + _number(m, s), -1)),
    _softmax("mask-diagonal", "a token does not attend to itself",
             _with_pairs(lambda square: ~torch.eye(len(square), dtype=torch.bool, device=square.device))),
    _softmax("mask-of-first-row", "every row has the first row's mask",
             _with_mask(lambda mask: mask[:1].expand_as(mask)), reported_as="mask-ignored"),
    _softmax("softmax-heads", "softmax over the heads' axis", lambda s, m: torch.softmax(_masked(s, m), 1), suits=many_heads),
    _softmax("mask-tiled", "head j of row i has the mask of row (i h + j) mod B", _tiled, suits=many_heads),
    _softmax("mask-window", "tokens attend to keys at most 3 away", _with_pairs(lambda square: square.tril(3) & square.triu(-3))),
    _softmax("mask-by-head", "head j does not see the j-th of the unmasked keys", _by_head, suits=many_heads),
    _softmax("softmax-missing", "masked scores themselves, 0 at masked keys", lambda s, m: s.masked_fill(~_over_keys(m), 0.0)),
    _softmax("softmax-plus-one", "exp(s) / (1 + Σ exp(s))", _plus_one),
    _split("head-split-interleaved", "query and key are split with feature i going to head i mod h", _split_in_turns),
    _split("head-split-unmoved", "query and key are split by a reshape to (B, h, S, d), without moving the axis",
           lambda x, heads: x.reshape(len(x), heads, x.shape[1], -1)),
    _merge("head-order", "heads are merged by a reshape of (B, h, S, d), without moving the head axis back",
           lambda x: x.reshape(len(x), x.shape[2], -1)),
    _merge("head-merge-interleaved", "merged with the heads' axis last: feature d · h + head", _merged_in_turns),
    _merge("heads-rows-exchanged", "merged as (h, B, S, d), read from the memory of (B, h, S, d)", _rows_as_heads),
    _merge("heads-reversed", "merged in reverse order", lambda x: x.flip(1).transpose(1, 2).flatten(2)),
    in_layer("scale-missing", "q kᵀ, not divided by √d", _unscaled, SCORES, suits=lambda a: a.head_size > 1, value=1.0),
    in_layer("scores-transposed", "k qᵀ", _transposed, SCORES),
    in_layer("scores-clipped", "clipped to ±1", _clipped, SCORES),
    in_layer("heads-unsplit", "one head of the whole width, divided by √d of a head, and its probabilities used by all",
             _unsplit, SCORES, suits=many_heads),
    in_layer("context-uniform", "the mean of the unmasked values", _context_uniform, CONTEXT),
    in_layer("context-of-keys", "probs · k", _context_of_keys, CONTEXT),
    in_layer("scale-without-bias", "the query's weight is divided by √d, its bias is not",
             _bias_unscaled, SCORES, suits=lambda a: a.head_size > 1),
    in_layer("heads-share-first", "every head weighs the first head's values", _first_values, CONTEXT, suits=many_heads),
    in_layer("heads-unmoved", "query, key and value are split, and the context merged, by reshapes without moving the axis",
             _unmoved, SCORES, CONTEXT, suits=many_heads),
    in_layer("heads-interleaved", "query, key and values are split, and the context merged, with the features in turns",
             _interleaved, SCORES, CONTEXT, suits=many_heads),
    _rotary("scores-rotary", "query and key turned by their positions' angles, features half a head apart in pairs",
            neighbours=False),
    _rotary("scores-rotary-neighbours", "query and key turned by their positions' angles, neighbouring features in pairs",
            neighbours=True),
    _scores_changed("scores-linear-bias", "ALiBi's slopes times the distance are taken off the scores",
                    _falling, suits=lambda a: a.num_attention_heads.bit_count() == 1),
    _scores_changed("scores-bias-by-distance", "sin((j + 1) d) is added to the scores of head j at distance d", _biased),
    in_layer("head-zero", "the context of head 1 is zero", _head_zero, CONTEXT, suits=many_heads),
)  # fmt: skip
