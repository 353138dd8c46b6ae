"""How each fault is repaired, and its equation where the catalogue's sentence is none.

Symbols are those of the correct equations in `conformance.oracle`. A name may hold `*`, which stands for any text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Remedy:
    """What to change in the candidate.

    Attributes:
        fix: in one or two sentences.
        equation: what the candidate computes; empty where the fault's own sentence says it.
    """

    fix: str = "Compute the step by the correct equation."
    equation: str = ""


def remedy(fault: str) -> Remedy:
    """The remedy of a fault: its own, or that of the first pattern that its name fits."""
    return next((found for name, found in REMEDIES.items() if fnmatchcase(fault, name)), Remedy())


_HIDDEN_ACT = (
    "Choose the function by the config's hidden_act: gelu is the erf form (torch.nn.functional.gelu(x)), gelu_new and "
    "gelu_pytorch_tanh are the tanh form (approximate='tanh'), relu is max(x, 0)."
)
_NORM = "Normalise each token over its features, with epsilon inside the root, then multiply by γ and add β."
_HEADS = "Split with x.view(B, S, h, d).transpose(1, 2), and merge with x.transpose(1, 2).reshape(B, S, h · d)."
_MASK = (
    "Set the scores of keys with attention_mask 0 to −∞ (or the format's lowest number) before the softmax; mask[:, None, None, :]."
)
_QKV = "Check in which order query, key and value stand in the fused weight, and split or map it in that order."
_TYPES = "Look up token_type_ids as they are given; where they are omitted, use zeros."
_POSITIONS = "Look up position ids position_offset, position_offset + 1, …, the same for every row."
_SINUSOIDS = "Feature 2i is sin(s / 10000^(2i/H)), feature 2i + 1 is cos(s / 10000^(2i/H))."
_POOLER = "Read the first token of each row: hidden[:, 0]."
_LAYERS = "Load layer i from the checkpoint's encoder.layer.i, and give each layer a module of its own."
_PRECISION = "Switch off reduced precision, or declare the format that is computed in as the run's --dtype."
_EXACT_FUNCTION = "Use the library's function, or an approximation whose error is that of a rounding."

REMEDIES: Mapping[str, Remedy] = {
    # activation functions
    "gelu-variant": Remedy(
        _HIDDEN_ACT, "y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) for gelu; y = x/2 · (1 + erf(x/√2)) for the tanh forms"
    ),
    "activation-quick-gelu": Remedy(_HIDDEN_ACT, "y = x / (1 + exp(−1.702 x))"),
    "activation-gelu": Remedy(_HIDDEN_ACT, "y = x/2 · (1 + erf(x/√2))"),
    "activation-gelu-tanh": Remedy(_HIDDEN_ACT, "y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))"),
    "activation-relu": Remedy(_HIDDEN_ACT, "y = max(x, 0)"),
    "activation-missing": Remedy(_HIDDEN_ACT, "y = x"),
    "activation-leaky-relu": Remedy(_HIDDEN_ACT, "y = max(x, 0.01 x)"),
    "activation-tanh": Remedy(_HIDDEN_ACT, "y = tanh(x)"),
    "gelu-argument": Remedy("Divide the argument of erf by √2, in full precision.", "y = x/2 · (1 + erf(k x))"),
    "gelu-tanh-constant": Remedy(
        "Set the factor of x³ to 0.044715.", "y = x/2 · (1 + tanh(√(2/π) (x + c x³))), c the wrong factor"
    ),
    "features-dropped": Remedy("Use all intermediate_size features.", "y_i = 0 for i ≥ intermediate_size / 2"),
    "pooler-activation-missing": Remedy("Apply tanh to the pooler's linear layer.", "y = x"),
    "pooler-relu": Remedy("Apply tanh to the pooler's linear layer.", "y = max(x, 0)"),
    "pooler-sigmoid": Remedy("Apply tanh to the pooler's linear layer.", "y = 1 / (1 + exp(−x))"),
    # norms and residuals
    "epsilon": Remedy(
        "Pass the config's layer_norm_eps to every LayerNorm: nn.LayerNorm(hidden_size, eps=config.layer_norm_eps).",
        "y = γ · (x − μ) / √(σ² + ε′) + β, ε′ ≠ ε",
    ),
    "epsilon-outside-root": Remedy(_NORM, "y = γ · (x − μ) / (σ + ε) + β"),
    "norm-variance": Remedy("Divide by n: var(-1, unbiased=False).", "σ² = Σ (x − μ)² / (n − 1)"),
    "norm-missing": Remedy(_NORM, "y = x"),
    "norm-without-mean": Remedy(_NORM, "y = γ · x / √(mean(x²) + ε) + β"),
    "norm-affine-missing": Remedy(
        "Load γ and β; old checkpoints call them gamma and beta. Let load_state_dict be strict.", "y = (x − μ) / √(σ² + ε)"
    ),
    "norm-bias-missing": Remedy("Give the LayerNorm a bias and load it.", "y = γ · (x − μ) / √(σ² + ε)"),
    "norm-weight-plus-one": Remedy("Multiply by γ itself.", "y = (1 + γ) · (x − μ) / √(σ² + ε) + β"),
    "norm-over-positions": Remedy(_NORM, "μ and σ² over the positions of each feature"),
    "norm-shared": Remedy("Give each layer two LayerNorms, attention.output.LayerNorm and output.LayerNorm, and load both."),
    "residual-after-norm": Remedy("Add the residual before the norm: LayerNorm(x + skip).", "y = LayerNorm(x) + skip"),
    "residual-missing": Remedy("Add the residual before the norm: LayerNorm(x + skip).", "y = LayerNorm(x)"),
    "residual-doubled": Remedy("Add the residual once.", "y = LayerNorm(x + 2 skip)"),
    "sublayer-missing": Remedy("Add the sub-layer's result to the residual.", "y = LayerNorm(skip)"),
    "residual-scaled": Remedy("Add the residual without a factor.", "y = LayerNorm(x + c skip)"),
    "residual-from-layer-input": Remedy(
        "Add the output of attention.output.LayerNorm behind the feed-forward network.", "y = LayerNorm(x + layer input)"
    ),
    # attention
    "scale-missing": Remedy("Divide the scores by √d, d = hidden_size / num_attention_heads.", "s = c q kᵀ, c ≠ 1/√d"),
    "scores-transposed": Remedy("Multiply query by the transposed key: query @ key.transpose(-1, -2).", "s = k qᵀ / √d"),
    "scores-clipped": Remedy("Leave the scores as they are.", "s = min(max(q kᵀ / √d, −1), 1)"),
    "softmax-temperature": Remedy("Scale the scores once, by 1/√d, and apply the softmax to them.", "p = softmax(s / T)"),
    "softmax-queries": Remedy("Apply the softmax over the last axis, the keys.", "p_ij = exp(s_ij) / Σ_i exp(s_ij)"),
    "softmax-missing": Remedy("Apply the softmax over the last axis, the keys.", "p = s, 0 at masked keys"),
    "softmax-plus-one": Remedy("Use the plain softmax.", "p_j = exp(s_j) / (1 + Σ_k exp(s_k))"),
    "mask-ignored": Remedy(_MASK, "p = softmax(s) over all keys"),
    "mask-inverted": Remedy(f"{_MASK} 1 in attention_mask means that a key is attended to."),
    "mask-on-queries": Remedy(_MASK, "mask[:, None, :, None] in place of mask[:, None, None, :]"),
    "mask-constant": Remedy(_MASK, "p_j ∝ w exp(s_j) at masked keys, w > 0"),
    "mask-from-token-types": Remedy("Pass attention_mask and token_type_ids by keyword."),
    "mask-shifted": Remedy("Apply attention_mask[:, j] to key j.", "key j has the mask of key j − 1"),
    "mask-multiplied": Remedy(_MASK, "p = softmax(s · mask)"),
    "mask-causal": Remedy("Let every token attend to all unmasked keys (is_causal=False).", "p = softmax over the keys j ≤ i"),
    "mask-added-raw": Remedy(_MASK, "p = softmax(s + mask)"),
    "mask-other": Remedy("Use the attention_mask of each call; export with the mask as an input."),
    "head-*": Remedy(_HEADS),
    "heads-reversed": Remedy("Concatenate the heads in their order: head 0 first."),
    "heads-*": Remedy("Read num_attention_heads from the config; d = hidden_size / num_attention_heads."),
    "context-of-keys": Remedy("Multiply the probabilities by the values.", "c = p k"),
    # linear layers
    "*-swapped": Remedy(_QKV),
    "qkv-rotated": Remedy(_QKV),
    "next-sentence-order": Remedy("Logit 0 means that the second sentence follows the first, logit 1 that it does not."),
    "class-labels-reversed": Remedy("Keep the order of the checkpoint's classifier rows (id2label)."),
    "weight-transposed": Remedy(
        "Transpose the kernel when it is loaded; in a registration, `transposed(…)` says so.", "y = x W + b"
    ),
    "weight-reversed": Remedy("Keep the order of the weight's rows.", "y_i = x W_(O−1−i)ᵀ + b_(O−1−i)"),
    "bias-missing": Remedy("Give the layer a bias and load it.", "y = x Wᵀ"),
    "bias-twice": Remedy("Add the bias once.", "y = x Wᵀ + 2 b"),
    "pre-norm": Remedy(
        "Feed the sub-layer its input without a norm; the norm stands behind the residual.", "y = LayerNorm(x) Wᵀ + b"
    ),
    "pooler-missing": Remedy("Apply pooler.dense and tanh to the first token.", "y = x₀"),
    "pooler-*": Remedy(_POOLER),
    # embeddings
    "positions-from-token-types": Remedy("Pass token_type_ids and position_ids by keyword."),
    "positions-sinusoidal": Remedy("Load the checkpoint's position_embeddings.", "sin(s / 10000^(2i/H)), cos(s / 10000^(2i/H))"),
    "positions-doubled": Remedy("Add the position embedding once.", "word + token type + 2 position"),
    "positions-missing": Remedy("Add the position embedding.", "word + token type"),
    "positions-*": Remedy(_POSITIONS),
    "sinusoid-*": Remedy(_SINUSOIDS),
    "token-types-missing": Remedy("Add the token-type embedding.", "word + position"),
    "token-types-doubled": Remedy("Add the token-type embedding once.", "word + 2 token type + position"),
    "token-types-from-*": Remedy("Pass token_type_ids, attention_mask and position_ids by keyword."),
    "token-types-*": Remedy(_TYPES),
    "padding-word-zeroed": Remedy("Keep the checkpoint's row of the padding token; padding_idx stops its gradient only."),
    # losses
    "next-sentence-label": Remedy("Label 0 means that the second sentence follows the first.", "cross entropy with 1 − label"),
    "loss-ignores-zero": Remedy("Use ignore_index=-100.", "mean over the rows with label ≠ 0"),
    "loss-denominator": Remedy("Divide by the number of tokens with a label other than -100.", "Σ loss / (B · S)"),
    # layers and parameters
    "layer-skipped": Remedy("Run all num_hidden_layers layers.", "y = x"),
    "layer-repeated": Remedy("Run each layer once.", "y = layer(layer(x))"),
    "hidden-clipped": Remedy("Leave the hidden state as it is.", "y = min(max(y, −c), c)"),
    "layer*": Remedy(_LAYERS),
    "parameters-other": Remedy("Load every parameter from the checkpoint, and fail on missing and unexpected names."),
    "dropout-active": Remedy("Call eval() before the forward pass.", "y = x / (1 − p) or 0, at random"),
    # precision
    "precision-tf32*": Remedy("Set torch.backends.cuda.matmul.allow_tf32 = False, or the runtime's equivalent."),
    "precision-int8*": Remedy("Run without quantisation, or export without it."),
    "precision-*": Remedy(_PRECISION),
    "weights-*": Remedy("Load the weights in the format of the run, from a checkpoint that was not saved in a narrower one."),
    "result-*": Remedy(_PRECISION),
    "*-approximated": Remedy(_EXACT_FUNCTION),
}
