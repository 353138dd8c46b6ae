"""A BERT encoder in NumPy that uses the copy of the client beside it; `--epsilon X` sets LayerNorm's epsilon, whatever the
config says."""

import math
import sys
from typing import Any

import numpy as np
from client import Unsupported, serve

erf = np.vectorize(math.erf, otypes=[float])
EPSILON = float(sys.argv[2]) if sys.argv[1:2] == ["--epsilon"] else None


def prepare(a: dict[str, Any], weights: dict[str, Any], device: str, dtype: str) -> Any:
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"NumPy has no fast {dtype}")
    if a["hidden_act"] != "gelu" or a["position_embedding_type"] != "absolute" or device != "cpu":
        raise Unsupported("absolute positions and GELU by erf, on the CPU")
    w = {name.removeprefix("bert."): value.astype(dtype) for name, value in weights.items()}
    epsilon = a["layer_norm_eps"] if EPSILON is None else EPSILON
    heads, width = a["num_attention_heads"], a["hidden_size"] // a["num_attention_heads"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + np.array(epsilon, dtype)) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x: Any) -> Any:
        return (x * 0.5 * (1 + erf(x.astype(np.float64) / math.sqrt(2)))).astype(dtype)

    def split(x: Any) -> Any:
        return x.reshape(*x.shape[:2], heads, width).transpose(0, 2, 1, 3)

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        ids = inputs["input_ids"]
        types, mask = inputs.get("token_type_ids", np.zeros_like(ids)), inputs.get("attention_mask", np.ones_like(ids))
        if ids.min() < 0 or types.min() < 0:
            raise ValueError("an id below 0, which NumPy would count from the end of the table")
        e, out = "embeddings", {}
        x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.token_type_embeddings.weight"][types]
        x = norm(x + w[f"{e}.position_embeddings.weight"][: ids.shape[1]], f"{e}.LayerNorm")
        out["embeddings.LayerNorm"] = x
        for i in range(a["num_hidden_layers"]):
            at = f"encoder.layer.{i}"
            q, k, v = (split(linear(x, f"{at}.attention.self.{n}")) for n in ("query", "key", "value"))
            scores = q @ k.transpose(0, 1, 3, 2) / np.array(math.sqrt(width), dtype)
            scores = np.where(mask[:, None, None, :] != 0, scores, -np.inf)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            context = (probs @ v).transpose(0, 2, 1, 3).reshape(x.shape)
            x = norm(linear(context, f"{at}.attention.output.dense") + x, f"{at}.attention.output.LayerNorm")
            out[f"{at}.attention.self.probs"], out[f"{at}.attention.output.LayerNorm"] = probs, x
            inner = gelu(linear(x, f"{at}.intermediate.dense"))
            x = norm(linear(inner, f"{at}.output.dense") + x, f"{at}.output.LayerNorm")
            out[f"{at}.output.LayerNorm"] = x
        return out

    return run


serve(prepare)
