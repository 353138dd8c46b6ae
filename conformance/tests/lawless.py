"""Candidates that each break one law, modelled on mistakes seen in practice, and correct candidates that look as if they did."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from conformance import ModuleRunner, TorchBatch
from conformance.benchmarks.detection.bert import Candidate, changed
from conformance.benchmarks.detection.variant import Variant, row_by_row
from conformance.implementations.hugging_face import HuggingFace, run
from conformance.implementations.making_bert import making_bert
from conformance.implementations.wordpiece import tokenizer

Stream = Iterator[tuple[str, Any]]


class Around(HuggingFace):
    """Hugging Face's BERT with its module changed, and something done before a call or to its outputs.

    Attributes:
        calls: number of calls since the preparation."""

    def __init__(
        self,
        before: Callable[["Around", TorchBatch], TorchBatch | None] | None = None,
        after: Callable[["Around", TorchBatch, str, Tensor], Tensor] | None = None,
        module: Callable[[Any], Any] | None = None,
        at_call: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__("eager", "around")
        self.before, self.after, self.changed, self.at_call, self.calls = before, after, module, at_call, 0

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        model: Any = self.module(checkpoint, device, dtype)
        if self.changed:
            self.changed(model)
        self.calls = 0

        def runner(batch: TorchBatch) -> Stream:
            self.calls += 1
            if self.at_call:
                self.at_call(model)
            given = (self.before(self, batch) if self.before else None) or batch
            for name, value in run(model, given):
                yield name, self.after(self, batch, name, value) if self.after else value

        return ModuleRunner(model, runner)


def _off(name: str, value: Tensor) -> Tensor:
    return value * 1.001 if name.endswith("output.LayerNorm") else value


def at(wrong: Callable[[Any, TorchBatch], bool]) -> Any:
    """Return a candidate whose outputs are off by a thousandth wherever `wrong(candidate, batch)` is true."""
    return Around(after=lambda self, batch, name, value: _off(name, value) if wrong(self, batch) else value)


def _leaking(scores: Tensor, keep: Tensor) -> Tensor:
    """Let head 2 attend to padding."""
    keys = keep.expand_as(scores).clone()
    keys[:, 2] = True
    return scores.masked_fill(~keys, -torch.inf).softmax(-1)


def _over_the_batch(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise by the mean and variance over all rows of the batch together."""
    mean, variance = x.mean((0, -1), keepdim=True), x.var((0, -1), keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


def _mask_from_ids(self: Any, batch: TorchBatch) -> TorchBatch:
    """Take positions whose token id is 0 as padding, whatever the mask says."""
    return TorchBatch(**{**_tensors(batch), "attention_mask": (batch.input_ids != 0).long()})


def _tensors(batch: TorchBatch) -> dict[str, Any]:
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {name: getattr(batch, name) for name in names if getattr(batch, name) is not None}


def _mask_where_omitted(self: Any, batch: TorchBatch) -> TorchBatch:
    return _mask_from_ids(self, batch) if batch.attention_mask is None else batch


def _types_where_omitted(self: Any, batch: TorchBatch) -> TorchBatch:
    """Set omitted token types to 1, as if every text were a second sentence."""
    return TorchBatch(**{"token_type_ids": torch.ones_like(batch.input_ids), **_tensors(batch)})


def _mask_in_its_own_dtype(self: Any, batch: TorchBatch) -> TorchBatch:
    """Add a float mask of ones and zeros to the scores, where it masks nothing."""
    mask = batch.attention_mask
    if mask is None or not mask.is_floating_point():
        return batch
    return TorchBatch(**{**_tensors(batch), "attention_mask": torch.ones_like(batch.input_ids)})


def _poison(self: Any, batch: TorchBatch, name: str, value: Tensor) -> Tensor:
    masked = batch.attention_mask is not None and bool((batch.attention_mask.sum(1) == 0).any())
    return value * torch.nan if masked and name.startswith("encoder") else value


def _invert(self: Any, batch: TorchBatch) -> None:
    """Alter the mask in place: unmask the first position of every row."""
    if batch.attention_mask is not None:
        batch.attention_mask[:, 0] = 1


def _reseed(self: Any, batch: TorchBatch) -> None:
    torch.manual_seed(0)


class _Noise:
    """Noise of the size of rounding that differs between calls, from a generator of its own."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def __call__(self, _: Any, batch: TorchBatch, name: str, value: Tensor) -> Tensor:
        return value * (1.0 + 1e-6 * self.random.random()) if name.endswith("output.LayerNorm") else value


def clipped(self: Any, batch: TorchBatch) -> TorchBatch:
    """Clip token ids and token types to the range of their tables."""
    tensors = _tensors(batch)
    tensors["input_ids"] = tensors["input_ids"].clamp(max=95)
    if "token_type_ids" in tensors:
        tensors["token_type_ids"] = tensors["token_type_ids"].clamp(max=1)
    return TorchBatch(**tensors)


def wrapped(self: Any, batch: TorchBatch) -> TorchBatch:
    """Read negative indices from the end of the table, as NumPy does."""
    tensors = _tensors(batch)
    for name, size in (("input_ids", 96), ("token_type_ids", 2)):
        if name in tensors:
            tensors[name] = torch.where(tensors[name] < 0, tensors[name] % size, tensors[name])
    return TorchBatch(**tensors)


def _cut(self: Any, batch: TorchBatch) -> TorchBatch:
    """Truncate an input that is too long, without an error."""
    return TorchBatch(**{name: tensor[:, :32] for name, tensor in _tensors(batch).items()})


def refuse(self: Any, batch: TorchBatch) -> None:
    raise RuntimeError("out of luck")


def counting(model: Any, persistent: bool = True) -> None:
    model.register_buffer("seen", torch.zeros(()), persistent=persistent)

    def count(module: Any, inputs: object, made: object) -> None:
        module.seen.add_(1.0)

    model.register_forward_hook(count)


def _holding(tensor: Tensor | None) -> Callable[[Any], nn.Module]:
    """A module with a tensor in a list, or with one buffer that is saved and one that is not."""

    def build(a: Any) -> nn.Module:
        model = making_bert.build(a)
        model.lm_head.kept = [tensor, model.embedding.token_embedding.weight]  # type: ignore[union-attr]
        model.lm_head.register_buffer("again", torch.ones(1), persistent=False)  # type: ignore[union-attr]
        model.lm_head.register_buffer("table", torch.ones(1))  # type: ignore[union-attr]
        return model

    return build


def _kept_twice(model: Any) -> None:
    """Transpose the first layer's kernel once, and keep the copy outside of the state dict."""
    dense = model["bert"].encoder.layer[0].intermediate.dense
    kernel = dense.weight.detach().T.contiguous()
    dense.forward = lambda x: x @ kernel + dense.bias


def _untied(model: Any) -> None:
    decoder = model["cls"]["predictions"].decoder
    decoder.weight = nn.Parameter(decoder.weight.detach().clone())


@dataclass(frozen=True)
class Promising(Variant):
    """A candidate that promises that a row's result does not depend on the rest of the batch."""

    batch_invariant: bool = True


class PromisingInVain(HuggingFace):
    batch_invariant = True


class Reading(HuggingFace):
    """A candidate with its own tokenizer."""

    def __init__(self, reader: Callable[..., Any]) -> None:
        super().__init__("eager", "reading")
        self.tokenizer = reader  # type: ignore[method-assign]


def accents_kept(vocabulary: Any, *, lower_case: bool, strip_accents: bool | None) -> Any:
    """Lower-case the text without stripping accents (ollama#15627)."""
    return tokenizer(vocabulary, lower_case=lower_case, strip_accents=bool(strip_accents))


def ids_alone(vocabulary: Any, *, lower_case: bool, strip_accents: bool | None) -> Any:
    read = tokenizer(vocabulary, lower_case=lower_case, strip_accents=strip_accents)
    return lambda text: (read(text)[0], None)


def _refusing(self: Any, batch: TorchBatch) -> None:
    """Refuse any mask that is not of the promised dtype int64."""
    if batch.attention_mask is not None and batch.attention_mask.dtype != torch.int64:
        raise TypeError("attention_mask must be int64")


def _replacing(self: Any, batch: TorchBatch) -> None:
    """Replace the mask of the batch object; the original array is not changed."""
    batch.attention_mask = None if batch.attention_mask is None else batch.attention_mask.clone().fill_(1) * batch.attention_mask


def _asserting(self: Any, batch: TorchBatch) -> None:
    """Raise its own error before any table look-up."""
    if int(batch.input_ids.min()) < 0 or (batch.token_type_ids is not None and int(batch.token_type_ids.min()) < 0):
        raise ValueError("ids are not negative")


BROKEN: dict[str, Any] = {
    "generated-batches": at(lambda self, batch: batch.input_ids.shape[1] % 2 == 1),
    "padding-length": Candidate([changed("probs", _leaking)]),
    "padding-content": Around(before=_mask_from_ids),
    "masked-row": Around(after=_poison),
    "batching": Candidate([changed("norms", _over_the_batch)]),
    "batching-bitwise": PromisingInVain("eager"),
    "mask-omitted": Around(before=_mask_where_omitted),
    "token-types-omitted": Around(before=_types_where_omitted),
    "mask-dtype": Around(before=_mask_in_its_own_dtype),
    "repeated": Around(after=_Noise()),
    "called-again": at(lambda self, batch: self.calls > 1),
    "dropout-off": Around(module=lambda model: model.train()),
    "ids-refused": Around(before=clipped),
    "negative-ids-refused": Around(before=wrapped),
    "length-refused": Around(before=_cut),
    "inputs-untouched": Around(before=_invert),
    "settings-untouched": Around(before=_reseed),
    "weights-untouched": Around(module=counting),
    "registered-tensors": replace(making_bert, build=_holding(torch.ones(1)), ignored=("*.table",)),
    "state-round-trip": Around(module=_kept_twice),
    "tied-weights": Around(module=_untied),
    "tokenization": Reading(accents_kept),
}

UNUSUAL: dict[str, Any] = {
    "batching-bitwise": Promising(arranged=row_by_row),
    "mask-dtype": Around(before=_refusing),
    "negative-ids-refused": Around(before=_asserting),
    "inputs-untouched": Around(before=_replacing),
    "weights-untouched": replace(making_bert, build=_holding(None), ignored=("*.table",)),
    "registered-tensors": replace(making_bert, build=_holding(None), ignored=("*.table",)),
    "state-round-trip": replace(making_bert, build=_holding(None), ignored=("*.table",)),
    "tied-weights": making_bert,
    "tokenization": Reading(ids_alone),
}
