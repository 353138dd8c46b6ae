"""What is planted, by name: written down, and the held-out ones chosen, before any of their filters were written.

`LISTED` are the mistakes that the project set out to name. `CONSTRUCTED` are further ones; of them the `HELD_OUT` whose hashes
are least never get a filter, so that they measure what the suite makes of a mistake that nobody foresaw.
"""

from collections.abc import Mapping
from hashlib import sha256

LISTED: Mapping[str, str] = {
    # activation functions
    "gelu-variant": "GELU by tanh where the architecture has erf, or the other way round",
    "activation-quick-gelu": "x · sigmoid(1.702 x)",
    "activation-relu": "max(x, 0)",
    "activation-missing": "x itself",
    "gelu-argument": "erf(k x) with k = 1 for 1/√2",
    "gelu-tanh-constant": "0.44715 for 0.044715 in the tanh form; only where the architecture has that form",
    # norms and residuals
    "epsilon": "1e-5 for 1e-12",
    "epsilon-outside-root": "(x − μ) / (√σ² + ε), with ε = 1e-5 for it to be seen",
    "norm-variance": "the variance divides by n − 1",
    "norm-missing": "the sum is handed on as it is",
    "norm-without-mean": "x / √(mean x² + ε) · γ + β, the mean not taken off",
    "norm-affine-missing": "neither γ nor β",
    "norm-shared": "both norms of a layer use the attention output norm's γ and β",
    "residual-after-norm": "LayerNorm(x) + skip for LayerNorm(x + skip)",
    "residual-missing": "LayerNorm(x)",
    "residual-doubled": "LayerNorm(x + 2 skip)",
    "residual-from-layer-input": "the second residual of a layer adds the layer's input",
    "pre-norm": "query, key and value are computed from the normalised input: attention.output.LayerNorm(x)",
    # attention
    "scale-missing": "q kᵀ, not divided by √d",
    "softmax-temperature": "softmax(s / 2)",
    "softmax-queries": "softmax over the queries' axis",
    "mask-ignored": "padded keys are attended to",
    "mask-inverted": "only padded keys are attended to where a row has any",
    "mask-on-queries": "the mask is laid along the queries' axis",
    "mask-constant": "−1 is added at masked keys, too little to hide them",
    "mask-shifted": "the mask of key j is that of key j − 1, the first one's its own",
    "mask-multiplied": "scores are multiplied by the mask: masked ones become 0",
    "head-order": "heads are merged by a reshape of (B, h, S, d), without moving the head axis back",
    "head-merge-interleaved": "merged with the heads' axis last: feature d · h + head",
    "head-split-interleaved": "query and key are split with feature i going to head i mod h",
    "head-split-unmoved": "query and key are split by a reshape to (B, h, S, d), without moving the axis",
    # projections
    "query-key-swapped": "query has key's parameters and key query's",
    "query-value-swapped": "query has value's parameters and value query's",
    "key-value-swapped": "key has value's parameters and value key's",
    "weight-transposed": "x W + b for x Wᵀ + b in a square attention output projection",
    "bias-missing": "no bias in the intermediate dense",
    "bias-twice": "the bias of the masked-LM decoder is added twice",
    # embeddings
    "positions-shifted": "position s reads row s + 2",
    "positions-from-one": "position s reads row s + 1",
    "positions-doubled": "the position embedding is added twice",
    "positions-repeated": "every position reads row 0",
    "positions-missing": "no position embedding",
    "positions-from-token-types": "token_type_ids are used as position ids",
    "positions-sinusoidal": "the learned table is ignored, sinusoids are used",
    "sinusoid-exponent": "sine exponent (2i)/d with i stepping by two already, cosine 2(i + 1)/d; sinusoidal positions only",
    "sinusoid-halves": "all sines in the first half of the features, cosines in the second; sinusoidal positions only",
    "sinusoid-order": "cosine at even, sine at odd features; sinusoidal positions only",
    "token-types-ignored": "all zeros",
    "token-types-missing": "no token-type embedding",
    "token-types-shifted": "type t reads row t + 1, clipped to the table",
    "token-types-from-mask": "the attention mask is used as token types",
    "token-types-from-positions": "position ids, clipped to the table, are used as token types",
    # pooler and heads
    "pooler-token": "the last position",
    "pooler-last-unmasked": "the last unmasked position",
    "pooler-mean": "the mean over unmasked positions",
    "pooler-missing": "pooler.dense hands on the first token as it is",
    "pooler-activation-missing": "no tanh",
    "decoder-untied": "the masked-LM decoder has weights of its own, randomly initialised",
    "next-sentence-order": "the two logits are exchanged",
    "next-sentence-label": "the loss takes label 1 as is-next",
    "loss-denominator": "the masked-LM loss is divided by the number of all tokens",
    "loss-ignores-zero": "the next-sentence loss drops label 0",
    "loss-labels-shifted": "the loss scores the logits of a token by the label of the next",
    "span-ends-exchanged": "start and end logits are exchanged",
    "span-labels-exchanged": "the losses of start and end take each other's positions",
    "span-loss-summed": "the losses of start and end are added, not averaged",
    "choices-interleaved": "the choices of a question are taken from rows that stand apart",
    "choices-one-by-one": "each choice is judged by itself",
    # sentence embeddings
    "pooling-with-padding": "the mean over all tokens, padding as well",
    "pooling-without-special": "the mean without the first and the last unmasked token",
    "pooling-first-token": "the first token for the mean",
    "pooling-mean": "the mean over unmasked positions for the first token",
    "pooling-max": "the largest of each feature over unmasked positions for the mean",
    "pooling-not-normalised": "the embedding is not divided by its length",
    "pooling-normalised-by-largest": "the embedding is divided by its largest feature",
    # layers and loading
    "layer-skipped": "a layer is not run",
    "layer-repeated": "a layer is run twice",
    "layers-reversed": "layer i has the parameters of layer L − 1 − i",
    "layers-shared": "every layer has the parameters of layer 0",
    "layer-neighbour": "a layer has the parameters of the layer before it (the first: after it)",
    "parameters-default": "an attention output norm keeps γ = 1 and β = 0",
    "parameters-other": "an intermediate dense keeps its random initialisation",
    # precision, where float32 is promised
    "precision-bfloat16": "a layer's linear products have operands and results rounded to bfloat16",
    "precision-float16": "the same in float16",
    "precision-tf32": "operands of a layer's linear products rounded to 11 significant bits",
    "precision-int8": "weights of a layer's linear products rounded to 255 levels a tensor",
    "dropout-active": "attention output dropout of 0.1 in evaluation",
}

CONSTRUCTED: Mapping[str, str] = {
    "activation-silu": "x · sigmoid(x)",
    "activation-twice": "GELU(GELU(x))",
    "activation-leaky-relu": "x for x > 0, else 0.01 x",
    "activation-softplus": "log(1 + exp(x))",
    "activation-tanh": "tanh(x)",
    "gelu-half-missing": "x · (1 + erf(x/√2))",
    "norm-bias-missing": "no β",
    "norm-weight-missing": "no γ",
    "norm-over-positions": "mean and variance over the positions",
    "norm-weight-plus-one": "γ + 1 for γ",
    "norm-twice": "LayerNorm(LayerNorm(x))",
    "norm-per-head": "mean and variance over each head's features",
    "norm-by-variance": "divided by σ² + ε",
    "mask-after-softmax": "probabilities multiplied by the mask, not renormalised",
    "mask-causal": "later keys are hidden",
    "mask-added-raw": "the mask's ones and zeros are added to the scores",
    "mask-diagonal": "a token does not attend to itself",
    "mask-of-first-row": "every row has the first row's mask",
    "softmax-heads": "softmax over the heads' axis",
    "softmax-missing": "masked scores themselves, 0 at masked keys",
    "softmax-plus-one": "exp(s) / (1 + Σ exp(s))",
    "scores-transposed": "k qᵀ",
    "scores-clipped": "clipped to ±1",
    "heads-reversed": "merged in reverse order",
    "heads-unsplit": "one head of the whole width, divided by √d of a head, and its probabilities used by all",
    "context-uniform": "the mean of the unmasked values",
    "context-of-keys": "probs · k",
    "qkv-rotated": "query has key's parameters, key value's, value query's",
    "qkv-interleaved": "rows of the fused matrix are read head by head as q, k, v in turns",
    "bias-negated": "x Wᵀ − b",
    "weight-reversed": "output features in reverse order",
    "features-dropped": "the second half of the intermediate features is zero",
    "positions-reversed": "position s reads row S − 1 − s",
    "positions-counted-by-mask": "the number of unmasked tokens before it",
    "sinusoid-base": "1000 for 10000; sinusoidal positions only",
    "token-types-inverted": "1 − t",
    "token-types-doubled": "the token-type embedding is added twice",
    "word-embeddings-scaled": "times √H",
    "padding-word-zeroed": "the word embedding of id 0 is zero",
    "words-shifted": "id + 1, clipped to the table",
    "first-token-zeroed": "the hidden state of the first token is zero behind a layer",
    "hidden-clipped": "a layer's output is clipped to ± one deviation of itself",
    "residual-subtracted": "LayerNorm(x − skip)",
    "residual-scaled": "LayerNorm(x + skip/√2)",
    "sublayer-missing": "LayerNorm(skip)",
    "sublayer-doubled": "LayerNorm(2 x + skip)",
    "pooler-second-token": "the second position",
    "pooler-max": "the largest of each feature over unmasked positions",
    "pooler-sigmoid": "sigmoid for tanh",
    "pooler-relu": "max(x, 0) for tanh",
    "loss-summed": "the masked-LM loss is a sum",
    "class-labels-reversed": "class logits in reverse order",
}

SHOWN: Mapping[str, str] = {
    "bias-after-activation": "f(W x + b) + b",
    "norm-over-sequence": "mean and variance over positions and features together",
    "norm-unbiased-deviation": "(x − μ) / (s + ε), s² divided by n − 1, with ε = 1e-3 for it to be seen",
    "scale-without-bias": "the query's weight is divided by √d, its bias is not",
    "heads-share-first": "every head weighs the first head's values",
    "positions-restarted": "counted from the last change of the token type",
    "positions-by-row": "the number of the row",
    "positions-clipped": "positions past 5 read row 5",
    "positions-other": "position s reads row 2 s",
    "positions-after-norm": "LayerNorm(word + token type) + position",
    "head-zero": "the context of head 1 is zero",
    "weight-reshaped": "the transposed of the intermediate dense's weight, reshaped",
    "pooler-mean-with-padding": "the mean over all positions",
    "head-without-pooler": "the next-sentence head reads the first token's hidden state",
    "head-without-tanh": "the next-sentence head reads pooler.dense",
    "decoder-without-transform": "the masked-LM decoder reads the hidden state",
    "layer-before-kept": "the keys are those of the layer before",
    "heads-read-layer-before": "pooler and masked-LM head read the output of the last layer but one",
}
"""Mistakes that got a filter after the blind ones (`blind`) had shown that they had none."""

RELEASED = frozenset({"activation-silu", "mask-after-softmax", "positions-counted-by-mask"})
"""Held out until the blind mistakes, among which they were."""

COUNT_HELD_OUT = 24


def _draw(name: str) -> str:
    return sha256(f"held out, 1: {name}".encode()).hexdigest()


HELD_OUT = frozenset(sorted(CONSTRUCTED, key=_draw)[:COUNT_HELD_OUT]) - RELEASED
"""Constructed faults for which no filter exists."""
