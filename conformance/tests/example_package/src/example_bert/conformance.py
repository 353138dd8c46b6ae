"""The registration of the example package's candidate."""

from conformance import Tap, TorchImplementation, fused, per_head, transposed
from example_bert.model import Encoder

LAYER = "bert.encoder.layer.{layer}"


def _affine(ours, theirs, kernel="weight", offset="bias", layout=lambda name: name):
    return {f"{ours}.{kernel}": layout(f"{theirs}.weight"), f"{ours}.{offset}": f"{theirs}.bias"}


def _qkv(part):
    return fused(*(f"{LAYER}.attention.self.{n}.{part}" for n in ("query", "key", "value")))


example_bert = TorchImplementation(
    build=lambda a: Encoder(
        a.vocab_size,
        a.hidden_size,
        a.num_hidden_layers,
        a.num_attention_heads,
        a.intermediate_size,
        a.max_position_embeddings,
        a.type_vocab_size,
        a.layer_norm_eps,
    ),  # fmt: skip
    parameters={
        "words.weight": "bert.embeddings.word_embeddings.weight",
        "places": "bert.embeddings.position_embeddings.weight",
        "kinds.weight": "bert.embeddings.token_type_embeddings.weight",
        **_affine("norm", "bert.embeddings.LayerNorm"),
        "blocks.{layer}.qkv.kernel": transposed(_qkv("weight")),
        "blocks.{layer}.qkv.offset": _qkv("bias"),
        "blocks.{layer}.merge": per_head(transposed(f"{LAYER}.attention.output.dense.weight")),
        "blocks.{layer}.merge_offset": f"{LAYER}.attention.output.dense.bias",
        **_affine("blocks.{layer}.norm1", f"{LAYER}.attention.output.LayerNorm"),
        **_affine("blocks.{layer}.up", f"{LAYER}.intermediate.dense", "kernel", "offset", transposed),
        **_affine("blocks.{layer}.down", f"{LAYER}.output.dense", "kernel", "offset", transposed),
        **_affine("blocks.{layer}.norm2", f"{LAYER}.output.LayerNorm"),
    },
    activations={
        "norm": "embeddings.LayerNorm",
        "blocks.{layer}.qkv": tuple(f"encoder.layer.{{layer}}.attention.self.{n}" for n in ("query", "key", "value")),
        "blocks.{layer}.norm1": "encoder.layer.{layer}.attention.output.LayerNorm",
        "blocks.{layer}.up": "encoder.layer.{layer}.intermediate.dense",
        Tap("blocks.{layer}.down", "input"): "encoder.layer.{layer}.intermediate.intermediate_act_fn",
        "blocks.{layer}.norm2": "encoder.layer.{layer}.output.LayerNorm",
    },
    call=lambda model, batch: model(batch.input_ids, batch.token_type_ids, batch.attention_mask),
    evaluation_only=True,
    unused=("bert.pooler.*", "cls.*", "classifier.*"),
    supported=lambda a, device, dtype: (
        None
        if (a.position_embedding_type, a.position_offset, a.hidden_act) == ("absolute", 0, "gelu")
        else "learned positions from 0 on and erf-GELU only"
    ),
)
