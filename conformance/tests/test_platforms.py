"""Runs of correct candidates under other settings of the machine, and reduced precision, which is recognised as such."""

import re
from typing import Any

import pytest
import torch

from conformance import check
from conformance.tests.test_reduced_precision import is_of_reduced_precision

NARROWER = re.compile(r"^as much as computing in b?float16 would leave")


NOISE = re.compile(r"as large as rounding to ([\d.]+) significant bits would leave$")


def bfloat16(x: Any) -> Any:
    return x.bfloat16().float()


def attention_in_bfloat16(query: Any, key: Any, value: Any, attn_mask: Any = None, scale: float | None = None, **_: Any) -> Any:
    """Attention as computed by a tiled kernel: products of bfloat16 operands, exponentials rounded before division by their sum."""
    scores = bfloat16(query) @ bfloat16(key).mT * (scale or query.shape[-1] ** -0.5)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    return bfloat16(exponentials) @ bfloat16(value) / exponentials.sum(-1, keepdim=True)


def test_products_inside_a_fused_attention_kernel_are_recognised_as_reduced_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = torch.nn.functional
    linear = functions.linear
    monkeypatch.setattr(functions, "linear", lambda x, weight, bias=None: linear(bfloat16(x), bfloat16(weight), bias))
    monkeypatch.setattr(functions, "scaled_dot_product_attention", attention_in_bfloat16)
    assert is_of_reduced_precision(check("hf-sdpa", "minilm", dtype="float32"))
