"""Hugging Face's BERT, with eager attention and with scaled-dot-product attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from conformance import Architecture, Checkpoint, Tap, TorchBatch, captured

if TYPE_CHECKING:
    import torch
    from torch import nn

Runner = Callable[[TorchBatch], "Iterator[tuple[str, torch.Tensor]]"]


IGNORED = -100  # the label of a position that has none


class HuggingFace:
    """`transformers`' BertModel with the heads that the checkpoint has.

    Args:
        attention: `eager` or `sdpa`, as `attn_implementation`.
    """

    def __init__(self, attention: str) -> None:
        """Nothing is imported or built before `prepare`."""
        self.attention = attention

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Why not, where transformers' BERT cannot be of this architecture."""
        if architecture.position_embedding_type != "absolute":
            return f"transformers' BERT has no {architecture.position_embedding_type} positions"
        if not architecture.embedding_norm or architecture.shared_layer_norm:
            return "transformers' BERT has a LayerNorm of its own at the embeddings and at each residual"
        if any(head.startswith("plain_") for head in architecture.heads):
            return "transformers' BERT has the paper's heads"
        return None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
        """Build the model from the checkpoint."""
        model = self.module(checkpoint, device, dtype)
        return lambda batch: run(model, batch)

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> nn.ModuleDict:
        """The module in eval mode."""
        import torch

        return self.build(checkpoint).to(device=device, dtype=getattr(torch, dtype)).eval()

    def build(self, checkpoint: Checkpoint) -> nn.ModuleDict:
        """The module, float64, parameters loaded strictly."""
        import torch

        a = checkpoint.architecture
        model = _with_heads(a, _config(a, self.attention)).to(torch.float64)
        state = checkpoint.state_dict("float64")
        if "masked_lm" in a.heads:
            state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
            state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
        model.load_state_dict(state, strict=True)
        return model


def _config(a: Architecture, attention: str) -> Any:
    from transformers import BertConfig

    ours = ("heads", "pooler", "embedding_norm", "shared_layer_norm", "position_embedding_type")
    return BertConfig(**{k: v for k, v in a.as_dict().items() if k not in ours}, attn_implementation=attention)


def _with_heads(a: Architecture, config: Any) -> nn.ModuleDict:
    """BertModel under the name `bert`, and each head under Hugging Face's name for it."""
    from torch import nn
    from transformers import BertModel
    from transformers.models.bert.modeling_bert import BertLMPredictionHead

    parts: dict[str, nn.Module] = {"bert": BertModel(config, add_pooling_layer=a.pooler)}
    heads: dict[str, nn.Module] = {}
    if "masked_lm" in a.heads:
        heads["predictions"] = BertLMPredictionHead(config)
    if "next_sentence" in a.heads:
        heads["seq_relationship"] = nn.Linear(a.hidden_size, 2)
    if heads:
        parts["cls"] = nn.ModuleDict(heads)
    if "classification" in a.heads:
        parts["classifier"] = nn.Linear(a.hidden_size, a.num_labels)
    return nn.ModuleDict(parts)


def taps(model: nn.Module) -> dict[str, Tap]:
    """Where each activation is found: at the module of its name, but for those that have none."""
    leaves = (
        "embeddings",
        "LayerNorm",
        "dense",
        "query",
        "key",
        "value",
        "activation",
        "act_fn",
        "decoder",
        "seq_relationship",
        "classifier",
    )
    found: dict[str, Tap] = {}
    for path, _ in model.named_modules():
        name = path.removeprefix("bert.")
        last = name.rsplit(".", 1)[-1]
        if (last.endswith(leaves) and name != "embeddings") or name.endswith(("output.dropout", "embeddings.dropout")):
            found[name] = Tap(path)
        elif name.endswith("attention.self"):
            found[f"{name}.probs"] = Tap(path, "output", 1)
        if name.endswith("attention.output.dense"):
            found[f"{name.removesuffix('output.dense')}self.context"] = Tap(path, "input")
    return found


def run(model: nn.ModuleDict, batch: TorchBatch) -> Iterator[tuple[str, torch.Tensor]]:
    """The forward pass, its interior activations, and the losses of the labels that the batch has."""

    def forward() -> dict[str, torch.Tensor]:
        outputs = model["bert"](batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
        heads = dict(model["cls"].named_children()) if "cls" in model else {}
        losses = {}
        if "predictions" in heads:
            tokens = heads["predictions"](outputs.last_hidden_state)
            losses["cls.predictions.loss"] = _loss(tokens, batch.labels)
        if "seq_relationship" in heads:
            pairs = heads["seq_relationship"](outputs.pooler_output)
            losses["cls.seq_relationship.loss"] = _loss(pairs, batch.next_sentence_label)
        if "classifier" in model:
            losses["classifier.loss"] = _loss(model["classifier"](outputs.pooler_output), batch.class_labels)
        return _with_total({name: loss for name, loss in losses.items() if loss is not None})

    return captured(model, taps(model), forward)


def _loss(logits: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor | None:
    """Mean cross entropy, as Hugging Face's heads compute it; None without labels."""
    from torch.nn.functional import cross_entropy

    if labels is None or bool((labels == IGNORED).all()):
        return None
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def _with_total(losses: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In the order of computation, and the sum of the two pre-training losses where there are both."""
    pretraining = [loss for name, loss in losses.items() if name.startswith("cls.")]
    if len(pretraining) < 2:
        return losses
    return {**losses, "cls.loss": pretraining[0] + pretraining[1]}


hf_eager = HuggingFace("eager")
hf_sdpa = HuggingFace("sdpa")
