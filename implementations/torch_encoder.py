"""`torch.nn.TransformerEncoder` with BERT's weights: the regular path, and the fast path, whose interior cannot be observed.

On the fast path (inference, no hooks) a layer is one fused kernel, and a batch that is padded on the right is a nested tensor
without its padding, so that padded positions of the output are zeros. On CUDA that kernel computes GELU by cuBLASLt, which has
only the tanh form (pytorch#104061): `torch_encoder_fast.toml` declares the failures.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance import Architecture, Layout, Tap, TorchBatch, TorchImplementation, fused

from .initialization import untrained

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}  # supported by the fast path


class BertEmbeddings(nn.Module):
    """Dropout of LayerNorm(word + token type + position): (B, S), (B, S) -> (B, S, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.word = nn.Embedding(a.vocab_size, a.hidden_size)
        self.first = a.position_offset
        self.position = nn.Embedding(a.max_position_embeddings, a.hidden_size)
        self.token_type = nn.Embedding(a.type_vocab_size, a.hidden_size)
        self.norm = nn.LayerNorm(a.hidden_size, a.layer_norm_eps)
        self.dropout = nn.Dropout(a.hidden_dropout_prob)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device) + self.first  # (S,)
        return self.dropout(self.norm(self.word(ids) + self.token_type(types) + self.position(positions)))


class BertOfTorch(nn.Module):
    """Embeddings, then torch's encoder with norms after the residuals: (B, S) ids, token types, mask -> (B, S, H)."""

    def __init__(self, a: Architecture, nested: bool = True) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(a)
        layer = nn.TransformerEncoderLayer(
            a.hidden_size, a.num_attention_heads, a.intermediate_size, a.hidden_dropout_prob,
            activation=ACTIVATION_FUNCTIONS[a.hidden_act], layer_norm_eps=a.layer_norm_eps, batch_first=True,
        )  # fmt: skip
        layer.self_attn.dropout, layer.dropout.p = a.attention_probs_dropout_prob, a.activation_dropout
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warns if nested tensors cannot be used
            self.encoder = nn.TransformerEncoder(layer, a.num_hidden_layers, enable_nested_tensor=nested)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embeddings(ids, types)  # (B, S, H)
        return self.encoder(hidden, src_key_padding_mask=mask == 0)


def call(model: BertOfTorch, batch: TorchBatch) -> dict[str, Tensor]:
    """Return the last hidden state, with defaults for inputs that a check omits."""
    given = batch.filled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns that nested tensors are a prototype
        hidden = model(given.input_ids, given.token_type_ids, given.attention_mask)
    return {f"encoder.layer.{len(model.encoder.layers) - 1}.output.LayerNorm": hidden}


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Return why torch's encoder does not support the architecture, or None if it does."""
    if a.hidden_act not in ACTIVATION_FUNCTIONS:
        return f"torch's encoder is given {' or '.join(ACTIVATION_FUNCTIONS)}, not {a.hidden_act}"
    if a.position_embedding_type != "absolute" or not a.embedding_norm or a.shared_layer_norm or not a.num_hidden_layers:
        return "it is built with learned positions, a norm at the embeddings and at each residual, and a layer at least"
    return None


def supported_by_the_fast_path(a: Architecture, device: str, dtype: str) -> str | None:
    """Return why torch's encoder has no fast path for the architecture, or None if it has one."""
    if a.num_attention_heads % 2:
        return "torch's encoder has a fast path only for an even number of heads; `torch-encoder` takes the regular path"
    return supported(a, device, dtype)


_LAYER, _THEIRS = "encoder.layers.{layer}", "bert.encoder.layer.{layer}"
_SELF = [f"{_THEIRS}.attention.self.{part}" for part in ("query", "key", "value")]
_MODULES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}
_EMBEDDINGS: dict[str | Tap, str] = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
}

PARAMETERS: dict[str, str | Layout] = {
    **{f"{ours}.weight": f"bert.{theirs}.weight" for ours, theirs in _EMBEDDINGS.items()},
    **{f"embeddings.norm.{part}": f"bert.embeddings.LayerNorm.{part}" for part in ("weight", "bias")},
    **{f"{_LAYER}.self_attn.in_proj_{part}": fused(*(f"{name}.{part}" for name in _SELF)) for part in ("weight", "bias")},
    **{f"{_LAYER}.{ours}.{part}": f"{_THEIRS}.{theirs}.{part}" for ours, theirs in _MODULES.items() for part in ("weight", "bias")},
}

_OWN = "encoder.layer.{layer}"

SEEN_FROM_OUTSIDE: dict[str | Tap, str] = {**_EMBEDDINGS, "embeddings.norm": "embeddings.LayerNorm"}

INSIDE: dict[str | Tap, str] = {
    **SEEN_FROM_OUTSIDE,
    "embeddings.dropout": "embeddings.dropout",
    f"{_LAYER}.self_attn": f"{_OWN}.attention.output.dense",
    f"{_LAYER}.dropout1": f"{_OWN}.attention.output.dropout",
    f"{_LAYER}.norm1": f"{_OWN}.attention.output.LayerNorm",
    f"{_LAYER}.linear1": f"{_OWN}.intermediate.dense",
    Tap(f"{_LAYER}.dropout", "input"): f"{_OWN}.intermediate.intermediate_act_fn",
    f"{_LAYER}.dropout": f"{_OWN}.intermediate.dropout",
    f"{_LAYER}.linear2": f"{_OWN}.output.dense",
    f"{_LAYER}.dropout2": f"{_OWN}.output.dropout",
    f"{_LAYER}.norm2": f"{_OWN}.output.LayerNorm",
}


def _call_alone(model: BertOfTorch, batch: TorchBatch) -> None:
    """Run the module without returning its output, which is captured at the last norm."""
    call(model, batch)


torch_encoder = TorchImplementation(
    build=partial(BertOfTorch, nested=False),
    parameters=PARAMETERS,
    activations=INSIDE,  # their hooks disable the fast path
    call=_call_alone,
    untrained=untrained(partial(BertOfTorch, nested=False)),  # torch makes all layers copies of one (pytorch#86274)
    unused=("bert.pooler.*", "cls.*", "classifier.*", "qa_outputs.*"),
    supported=supported,
    name="torch-encoder",
)
torch_encoder_fast = replace(
    torch_encoder,
    build=BertOfTorch,
    activations=SEEN_FROM_OUTSIDE,
    call=call,
    supported=supported_by_the_fast_path,
    known_failures=Path(__file__).with_name("torch_encoder_fast.toml"),
    name="torch-encoder-fast",
)
