"""A decoder that reads its sequence one token at a time, with a cache of the keys and values of earlier tokens.

The results are concatenated to whole sequences and judged like a single pass over all tokens: token by token equals all at once,
within rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from conformance import Architecture, Checkpoint, TorchBatch

from .hugging_face import hf_eager
from .inner_workings import BertConfig, inner_workings, new_cache

# Runs a module on one more token, given its inputs by name and the cache; returns hidden states, and each layer's probabilities.
Step = Callable[[Any, dict[str, Tensor], Any], tuple[list[Tensor], list[Tensor]]]


@dataclass(frozen=True)
class Cached:
    """A candidate that runs a module one token at a time.

    Attributes:
        name: name in results.
        of: the candidate that provides the module.
        new: function that returns an empty cache for a module.
        step: function that runs the module on one token.
        features: the optional features that the candidate supports.
        evaluation_only: whether the candidate runs in evaluation mode only.
    """

    name: str
    of: Any
    new: Callable[[Any], Any]
    step: Step
    features: tuple[str, ...] = ("is_decoder", "add_cross_attention", "relative_key", "relative_key_query")
    evaluation_only: bool = True

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return why the architecture is not supported: no decoder, no layers, or not supported by the underlying candidate."""
        if not architecture.is_decoder:
            return "only a decoder can be run a token at a time: in an encoder every token depends on all others"
        if not architecture.num_hidden_layers:
            return "a network without layers keeps no keys, from whose number the position of the next token follows"
        reason: str | None = self.of.supports(architecture, device, dtype)
        return reason

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Iterator[tuple[str, Tensor]]]:
        """Return a runner that calls the loaded module in a loop over the tokens."""
        model = self.of.module(checkpoint, device, dtype)

        def runner(batch: TorchBatch) -> Iterator[tuple[str, Tensor]]:
            with torch.no_grad():
                return _named(*self._whole(model, batch))

        return runner

    def _whole(self, model: nn.Module, batch: TorchBatch) -> tuple[list[Tensor], list[Tensor]]:
        """Return hidden states (B, S, H) and probabilities (B, h, S, S) of all layers, with one pass per token."""
        given, cache, length = batch.filled(), self.new(model), batch.input_ids.shape[1]
        passes = []
        for t in range(length):
            inputs = {name: getattr(given, name)[:, t : t + 1] for name in ("input_ids", "token_type_ids")}
            inputs["attention_mask"] = given.attention_mask[:, : t + 1]  # type: ignore[index]  # `filled` sets it
            if batch.encoder_hidden_states is not None:
                inputs["encoder_hidden_states"] = batch.encoder_hidden_states.to(next(model.parameters()).dtype)
                if batch.encoder_attention_mask is not None:
                    inputs["encoder_attention_mask"] = batch.encoder_attention_mask
            hidden, probs = self.step(model, inputs, cache)
            passes.append((hidden, [pad(p, (0, length - t - 1)) for p in probs]))  # later keys get probability 0
        hidden_states, attentions = (list(zip(*column, strict=True)) for column in zip(*passes, strict=True))
        return [torch.cat(each, 1) for each in hidden_states], [torch.cat(each, 2) for each in attentions]


def _named(hidden: list[Tensor], attentions: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the activations by name, in the order of computation."""
    first, *outputs = hidden
    yield "embeddings.dropout", first
    for i, (probs, output) in enumerate(zip(attentions, outputs, strict=True)):
        yield f"encoder.layer.{i}.attention.self.probs", probs
        yield f"encoder.layer.{i}.output.LayerNorm", output


def _of_inner_workings(model: Any, inputs: dict[str, Tensor], cache: Any) -> tuple[list[Tensor], list[Tensor]]:
    output = model.bert(**inputs, cache=cache, output_attentions=True, output_hidden_states=True)
    return output.hidden_states, output.attentions


def _of_hugging_face(model: Any, inputs: dict[str, Tensor], cache: Any) -> tuple[list[Tensor], list[Tensor]]:
    output = model["bert"](**inputs, past_key_values=cache, use_cache=True, output_attentions=True, output_hidden_states=True)
    return output.hidden_states, output.attentions


def _hugging_faces_cache(model: Any) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    config = model["bert"].config
    if config.add_cross_attention:
        return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    return DynamicCache(config=config)


inner_workings_cached = Cached(
    "inner-workings-cached",
    inner_workings,
    lambda model: new_cache(BertConfig(num_hidden_layers=len(model.bert.encoder.layer))),
    _of_inner_workings,
)
hf_cached = Cached("hf-cached", hf_eager, _hugging_faces_cache, _of_hugging_face)
