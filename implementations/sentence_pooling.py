"""The embedding of a sentence behind a BERT, computed as sentence-transformers' modules Pooling and Normalize do."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def sentence_embedding(hidden: Tensor, mask: Tensor | None, pooling: str, normalized: bool) -> dict[str, Tensor]:
    """(B, S, H) and (B, S), 1 for what is no padding -> the embeddings (B, H), by activation.

    Args:
        hidden: the last hidden state.
        mask: None: there is no padding.
        pooling: `cls`, `mean`, `mean-sqrt-length`, `weighted-mean`, `max` or `last`.
        normalized: whether each is divided by its length.
    """
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2])
    pooled = pool(hidden, mask.to(hidden.dtype)[:, :, None], pooling)
    if not normalized:
        return {"sentence_embedding": pooled}
    return {"sentence_embedding.pooled": pooled, "sentence_embedding": normalize(pooled, p=2, dim=1)}


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """(B, S, H) and (B, S, 1) -> (B, H)."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "max":
        return hidden.masked_fill(mask == 0, -torch.inf).amax(1)
    if pooling == "last":
        position = torch.arange(mask.shape[1], device=mask.device)[None, :, None]
        last = (position * (mask != 0)).argmax(1, keepdim=True)  # (B, 1, 1)
        return hidden.take_along_dim(last, 1)[:, 0]
    if pooling == "weighted-mean":
        mask = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=mask.dtype)[None, :, None]
    total, count = (hidden * mask).sum(1), mask.sum(1).clamp(min=1e-9)
    return total / (count.sqrt() if pooling == "mean-sqrt-length" else count)
