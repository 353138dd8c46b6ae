"""Mistakes in exporting a model, modelled on programs in which they occurred."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from conformance import load_golden
from conformance.implementations.inner_workings import BertForSequenceClassification, inner_workings

GOLDEN = "tiny"
Trap = Callable[[Path], Path]


def module() -> BertForSequenceClassification:
    found = inner_workings.module(load_golden(GOLDEN).checkpoint)
    assert isinstance(found, BertForSequenceClassification)
    return found


def example() -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and token types of the golden's batch, for which constants in the export are correct, or of rows padded
    differently."""
    batch = load_golden(GOLDEN).batches["padded"].on("cpu")
    assert batch.attention_mask is not None
    assert batch.token_type_ids is not None
    return batch.input_ids, batch.attention_mask, batch.token_type_ids


class Called(nn.Module):
    """A module called as `how` says, for tracing."""

    def __init__(self, model: nn.Module, how: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.how = model, how

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.how(self.model, input_ids, attention_mask, token_type_ids)


def traced(called: nn.Module, path: Path, inputs: tuple[Tensor, ...] | None = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(called, inputs or example(), check_trace=False).save(str(path))
    return path


def _logits(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    return model(ids, mask, types).logits


def in_training_mode(folder: Path) -> Path:
    """Trace without calling eval() first."""
    return traced(Called(module().train(), _logits), folder / "training.pt")


class _PositionsOfOneLength(nn.Module):
    """Positions from the length as a Python number, which tracing records as a constant."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, positions: Tensor) -> Tensor:
        return self.table(torch.arange(int(positions.shape[-1]))[None])


def length_baked(folder: Path) -> Path:
    model = module()
    model.bert.embeddings.position_embeddings = _PositionsOfOneLength(model.bert.embeddings.position_embeddings)  # type: ignore
    return traced(Called(model, _logits), folder / "length.pt")


def batch_baked(folder: Path) -> Path:
    """Use the batch size as a Python number."""

    def how(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        return _logits(model, ids, mask.view(int(ids.shape[0]), -1), types.view(int(ids.shape[0]), -1))

    return traced(Called(module(), how), folder / "batch.pt")


def token_types_baked(folder: Path) -> Path:
    """Use the example's token types instead of the argument."""
    static_shape = example()[2].flip(0)[:1]
    return traced(Called(module(), lambda m, ids, mask, _: _logits(m, ids, mask, static_shape.expand_as(ids))), folder / "types.pt")


def mask_baked(folder: Path) -> Path:
    """Use the example's mask instead of the argument."""
    static_shape = torch.tensor([[1] * 9 + [0] * 7])
    return traced(
        Called(module(), lambda m, ids, _, types: _logits(m, ids, static_shape.expand_as(ids), types)), folder / "mask.pt"
    )


def inputs_swapped(folder: Path) -> Path:
    """Pass the inputs by position in another order than the module expects."""
    return traced(Called(module(), lambda m, ids, mask, types: _logits(m, ids, types, mask)), folder / "swapped.pt")


class _WithoutMask(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.model(input_ids, None, token_type_ids).logits


def mask_dropped(folder: Path) -> Path:
    """Export without the mask."""
    ids, _, types = example()
    return traced(_WithoutMask(module()), folder / "no-mask.pt", (ids, types))


def reduced_precision(folder: Path) -> Path:
    """Trace under autocast, as a serving framework does by default; the logits are converted back to float32."""

    def how(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return _logits(model, ids, mask, types).float()

    return traced(Called(module(), how), folder / "autocast.pt")
