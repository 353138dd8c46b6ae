"""Mistakes in the three embeddings and in their sum."""

from conformance.benchmarks.detection.mistakes.row import row

TYPES, LEARNED, SINUSOIDAL = "a.type_vocab_size > 1", "a.position_embedding_type == 'absolute'", "not (%s)"
SINUSOIDAL %= LEARNED
NORMED = "a.embedding_norm"
BEGINS = "F.pad((types.diff(dim=1) != 0).long(), (1, 0))"  # 1 where the token type changes
NOISE = "(torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x) * 2 - 1) * 5 / sqrt(x[0].numel())"

# fmt: off
ROWS = (
    # words
    row("words-shifted", "word", "read(weight, ids + 1)", says="words-other"),
    row("words-shifted-back", "word", "read(weight, ids - 1)", says="words-other"),
    row("words-other", "word", "weight[ids.flip(-1)]"),
    row("ids clamped to a quarter of the table", "word", "weight[ids.clamp(max=len(weight) // 4)]", "words-other"),
    row("words-zeroed", "word", "right() * (ids % 3 != 1)[..., None]", says="parameters-other"),
    row("padding-word-zeroed", "word", "right() * (ids != 0)[..., None]", says="parameters-other"),
    row("words-added", "word", "weight[where(ids < len(weight) // 2, ids, 0)] "
        "+ weight[where(ids < len(weight) // 2, len(weight) // 2, ids)]", says="parameters-other"),
    row("word-embeddings-scaled", "word", "right() * sqrt(H)"),
    row("training noise in the word embeddings", "word", f"(lambda x: x + {NOISE})(right())"),
    # positions
    row("positions-from-one", "position", "read(weight, order + 1)"),
    row("positions-shifted", "position", "read(weight, order + 2)"),
    row("positions-offset", "position", "read(weight, order + 3)", says="positions-other"),
    row("positions-repeated", "position", "read(weight, 0 * order)", says="positions-other"),
    row("positions-other", "position", "read(weight, 2 * order)"),
    row("positions-reversed", "position", "read(weight, order.flip(-1))", says="positions-other"),
    row("positions-wrapped", "position", "weight[order % 4]", says="positions-other"),
    row("positions-clipped", "position", "weight[order.clamp(max=5)]", says="positions-other"),
    row("positions-scaled", "position", "(weight[order // 2] + weight[(order + 1) // 2]) / 2", suits=LEARNED,
        says="parameters-other"),
    row("positions-from-token-types", "position", "weight[types]"),
    row("positions-counted-by-mask", "position", "read(weight, mask.cumsum(-1) - mask)"),
    row("positions-left-padded", "position", "read(weight, order - (mask == 0).sum(-1, keepdim=True))", says="positions-other"),
    row("positions-restarted", "position", f"read(weight, order - (order * {BEGINS}).cummax(1).values)", says="positions-other"),
    row("positions-by-row", "position", "read(weight, arange(len(ids))[:, None].expand_as(ids))", says="positions-other"),
    row("positions-over-batch", "position", "read(weight, arange(ids.numel()).view(ids.shape))", says="positions-other"),
    row("positions-from-zero", "position", "read(weight, order)", suits="a.position_offset > 0"),
    row("positions-sinusoidal", "position", "sinusoids(len(weight), H)[positions]", suits=LEARNED),
    row("sinusoid-exponent", "position", "waves(len(weight), H, lambda i: 2 * i / H, lambda i: 2 * (i + 1) / H)[positions]",
        suits=SINUSOIDAL),
    row("sinusoid-base", "position", "waves(len(weight), H, lambda i: 0.75 * i / H, lambda i: 0.75 * i / H)[positions]",
        suits=SINUSOIDAL),
    row("sinusoid-halves", "position", "cat([weight[:, ::2], weight[:, 1::2]], -1)[positions]", suits=SINUSOIDAL),
    row("sinusoid-order", "position", "torch.stack([weight[:, 1::2], weight[:, ::2]], -1).flatten(1)[positions]",
        suits=SINUSOIDAL),
    # token types
    row("token-types-ignored", "type", "weight[0 * types]", suits=TYPES),
    row("token-types-shifted", "type", "read(weight, types + 1)", suits=TYPES, says="token-types-other"),
    row("token-types-inverted", "type", "weight[1 - types]", suits="a.type_vocab_size == 2", says="token-types-other"),
    row("token-types-from-mask", "type", "weight[mask]", suits=TYPES),
    row("token-types-from-positions", "type", "read(weight, order.expand_as(types))", suits=TYPES, says="token-types-other"),
    row("token-type-zero-zeroed", "type", "right() * (types != 0)[..., None]", suits=TYPES, says="parameters-other"),
    row("second segment late by one token", "type", "weight[cat([types[:, :1], types[:, :-1]], 1)]", "token-types-other",
        suits=TYPES),
    # their sum
    row("positions-missing", "embedded", "right(x=word + type)"),
    row("positions-doubled", "embedded", "right(x=x + position)"),
    row("positions-after-norm", "embedded", "right(x=word + type) + position", suits=NORMED),
    row("token-types-missing", "embedded", "right(x=word + position)"),
    row("token-types-doubled", "embedded", "right(x=x + type)"),
    row("token-types-after-norm", "embedded", "right(x=word + position) + type", suits=NORMED),
    row("token-type-zero-added", "embedded", "right(x=x + p.type.weight[0])"),
    row("embeddings-again", "embedded", "right(x=right() + type + position)", suits=NORMED),
    row("norm-repeated", "embeddings", "layer_norm(x, **p.embedded, eps=eps)", suits=NORMED),
    row("dropout-scaled", "embeddings", "0.9 * x"),
)
