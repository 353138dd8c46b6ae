"""Mistakes in the pooler, the heads, their losses, and sentence embeddings."""

from conformance.benchmarks.detection.mistakes.row import SHORT, row

POOLED, LOGITS, PAIR = "a.pooler", "'masked_lm' in a.heads", "a.pooler and 'next_sentence' in a.heads"
MEAN_NORMALISED, FIRST = "a.pooling == 'mean' and a.normalize", "a.pooling == 'cls' and not a.normalize"
INNER = "(mask == 1) & (mask.cumsum(1) > 1) & (mask.cumsum(1) < mask.sum(1, keepdim=True))"  # neither the first nor the last token
INITIAL = "normal(weight.shape, 0, weight) * a.initializer_range"
UNIFORM = ("torch.empty(len(weight), H + 1).uniform_(-H**-0.5, H**-0.5, generator=torch.Generator().manual_seed(0))[:, 1:]"
           ".to(weight)")  # fmt: skip
LAST = "hide(last.mT, mask[:, None] == 1).mT"

# fmt: off
ROWS = (
    # the pooler
    row("pooler-token", "pooler", "right(x=last[:, -1])"),
    row("pooler-second-token", "pooler", "right(x=last[:, min(1, last.shape[1] - 1)])"),
    row("pooler-last-unmasked", "pooler", "right(x=last[arange(len(last)), (order * mask).argmax(-1)])"),
    row("pooler-last-by-length", "pooler", "right(x=last[arange(len(last)), mask.sum(1) - 1])"),
    row("pooler-mean", "pooler", "right(x=mean(last, mask))"),
    row("pooler-mean-with-padding", "pooler", "right(x=last.mean(1))"),
    row("pooler-weighted-mean", "pooler", "right(x=mean(last, mask * (order + 1)))"),
    row("pooler-weighted-mean-with-padding", "pooler", "right(x=mean(last, (0 * mask + 1) * (order + 1)))"),
    row("pooler-max", "pooler", f"right(x={LAST}.amax(1))", ""),
    row("pooler-missing", "pooler", "x"),
    row("pooler-normalised", "pooled", "normalize(right())"),
    row("pooler-activation-missing", "pooled", "x", "pooler-activation-missing head-without-tanh"),
    row("pooler-sigmoid", "pooled", "sigmoid(x)"),
    row("pooler-relu", "pooled", "relu(x)"),
    row("pooler-gelu", "pooled", "gelu(x)"),
    row("activation-hard-tanh", "pooled", "x.clamp(-1, 1)"),
    row("rational tanh", "pooled", "(lambda y: y * (27 + y * y) / (27 + 9 * y * y))(x.clamp(-3, 3))"),
    row("parameters-initial", "pooler", f"right(weight={INITIAL}, bias=None)", dtypes=SHORT),
    row("heads-read-mean", "pooler", "right(last=(layers[-2].handed + last) / 2)", suits="a.pooler and L > 1"),
    row("heads-read-norm", "pooler", "right(last=layer_norm(last, eps=eps))"),
    row("heads-read-norm-twice", "pooler", "right(last=layer_norm(last, **layers[-1].p.output, eps=eps))"),
    # the next-sentence head
    row("head-without-pooler", "pair", "right(x=last[:, 0])", suits=PAIR),
    row("head-without-tanh", "pair", "right(x=pooler)", suits=PAIR),
    row("pooler-twice", "pair", "right(x=tanh(linear(pooled, **p.pooler)))", suits=PAIR),
    row("logits-log-softmax", "pair", "log_softmax(right())", suits=PAIR),
    row("next-sentence-order", "pair", "right().flip(-1)", "next-sentence-order"),
    row("next-sentence-label", "pair_loss", "right(y=where(y < 0, y, 1 - y))"),
    row("loss-ignores-zero", "pair_loss", "right(y=y.masked_fill(y == 0, -100))"),
    # the masked-LM head
    row("decoder-without-transform", "logits", "right(x=last)", suits=LOGITS),
    row("decoder-without-norm", "logits", "right(x=transform_activated)", suits=LOGITS),
    row("decoder-untied", "logits", f"right(weight={UNIFORM})", "parameters-initial parameters-other", suits=LOGITS),
    row("rows of length one", "logits", "right(weight=normalize(weight))", "parameters-other", suits=LOGITS),
    row("product-scaled", "logits", "right(x=x / sqrt(H))", "parameters-other"),
    row("bias-twice", "logits", "right() + bias"),
    row("logits-capped", "logits", "20 * tanh(right() / 20)", suits=LOGITS),
    row("logits-suppressed", "logits", "F.pad(right()[..., 4:], (4, 0), value=-10000.0)", suits=LOGITS, says="parameters-other"),
    row("dense-missing", "transform", "x", "dense-missing projection-missing"),
    row("transform-residual", "transformed", "right(x=x + last)"),
    row("transform-order", {"transform_activated": "layer_norm(transform, **p.transformed, eps=eps)",
                            "transformed": "gelu(x) if act == 'gelu' else tanh_gelu(x)"}, suits="act.startswith('gelu')"),
    row("transform-norm-first", {"transform_activated": "right(x=layer_norm(transform, **p.transformed, eps=eps))",
                                 "transformed": "right(x=transform)"}),
    row("loss-denominator", "token_loss", "right(reduction='sum') / y.numel()"),
    row("loss-summed", "token_loss", "right(reduction='sum')", ""),
    row("loss-labels-shifted", "token_loss", "right(y=F.pad(y[:, 1:], (0, 1), value=-100))"),
    # task heads
    row("class-labels-reversed", "classes", "right().flip(-1)", suits="'classification' in a.heads"),
    row("choices-interleaved", "class_loss", "right(x=classes.view(-1, len(y)).T)", suits="'multiple_choice' in a.heads"),
    row("choices-one-by-one", "class_loss",
        "F.binary_cross_entropy_with_logits(x[y >= 0], F.one_hot(y[y >= 0], x.shape[-1]).to(x))",
        suits="'multiple_choice' in a.heads"),
    row("span-ends-exchanged", "spans", "right().flip(-1)", "span-ends-exchanged"),
    row("span-labels-exchanged", {"start_loss": "right(y=end_positions)", "end_loss": "right(y=start_positions)"}),
    row("span-loss-summed", "span_loss", "start_loss + end_loss"),
    # sentence embeddings
    row("pooling-mean", "embedding", "mean(last, mask)", suits=FIRST),
    row("pooling-with-padding", "sentence", "last.mean(1)", suits=MEAN_NORMALISED),
    row("pooling-without-special", "sentence", f"mean(last, {INNER})", suits=MEAN_NORMALISED),
    row("pooling-first-token", "sentence", "last[:, 0]", suits=MEAN_NORMALISED),
    row("pooling-max", "sentence", f"{LAST}.amax(1)", suits=MEAN_NORMALISED),
    row("pooling-not-normalised", "embedding", "x", suits=MEAN_NORMALISED),
    row("pooling-normalised-by-largest", "embedding", "x / x.abs().amax(1, keepdim=True)", suits=MEAN_NORMALISED),
)
