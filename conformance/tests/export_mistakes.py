"""Mistakes in exporting a model, modelled on programs in which they occurred."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from conformance import load_golden
from conformance.implementations.inner_workings import BertForSequenceClassification, inner_workings

GOLDEN = "tiny"
How = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def module() -> BertForSequenceClassification:
    model = inner_workings.module(load_golden(GOLDEN).checkpoint)
    assert isinstance(model, BertForSequenceClassification)
    return model


def example() -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and token types of the golden's batch, for which constants in the export are correct."""
    batch = load_golden(GOLDEN).batches["padded"].on("cpu")
    assert batch.attention_mask is not None
    assert batch.token_type_ids is not None
    return batch.input_ids, batch.attention_mask, batch.token_type_ids


def logits(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    return model(ids, mask, types).logits


class Called(nn.Module):
    """A module called as `how` says, for tracing."""

    def __init__(self, model: nn.Module, how: How = logits) -> None:
        super().__init__()
        self.model, self.how = model, how

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.how(self.model, input_ids, attention_mask, token_type_ids)


class _PositionsOfOneLength(nn.Module):
    """Positions from the length as a Python number, which tracing records as a constant."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, positions: Tensor) -> Tensor:
        return self.table(torch.arange(int(positions.shape[-1]))[None])


def traced(called: nn.Module, path: Path) -> Path:
    ids, mask, types = example()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(called, (ids, mask, types), check_trace=False).save(str(path))
    return path


def _in_bfloat16(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """Compute under autocast, as a serving framework does by default, with the logits converted back to float32."""
    with torch.autocast("cpu", torch.bfloat16):
        return logits(model, ids, mask, types).float()


def length_baked() -> nn.Module:
    model = module()
    embeddings = model.bert.embeddings
    embeddings.position_embeddings = _PositionsOfOneLength(embeddings.position_embeddings)  # type: ignore[arg-type, assignment]
    return Called(model)


def batch_size_baked() -> nn.Module:
    def how(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        return logits(model, ids, mask.view(int(ids.shape[0]), -1), types.view(int(ids.shape[0]), -1))

    return Called(module(), how)


_MASK = torch.tensor([[1] * 9 + [0] * 7])

# By what is wrong: the module that is traced, and the names of the mistakes.
MISTAKES: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "mask baked": (lambda: Called(module(), lambda m, ids, _, types: logits(m, ids, _MASK.expand_as(ids), types)), {"mask-other"}),
    "inputs swapped": (
        lambda: Called(module(), lambda m, ids, mask, types: logits(m, ids, types, mask)),
        {"token-types-from-mask", "mask-from-token-types"},
    ),
    "reduced precision": (lambda: Called(module(), _in_bfloat16), {"precision-bfloat16", "result-bfloat16"}),
}
