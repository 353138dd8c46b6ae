"""Hugging Face's BERT, with eager attention and with scaled-dot-product attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from conformance import Checkpoint, Tap, TorchBatch, captured

if TYPE_CHECKING:
    import torch
    from torch import nn

Runner = Callable[[TorchBatch], "Iterator[tuple[str, torch.Tensor]]"]


class HuggingFace:
    """`transformers`' BertModel with the heads that the checkpoint has.

    Args:
        attention: `eager` or `sdpa`, as `attn_implementation`.
    """

    def __init__(self, attention: str) -> None:
        """Nothing is imported or built before `prepare`."""
        self.attention = attention

    def supports(self, architecture: Any, device: str, dtype: str) -> str | None:
        """Why not, where transformers' BERT cannot be of this architecture."""
        if architecture.position_embedding_type != "absolute":
            return f"transformers' BERT has no {architecture.position_embedding_type} positions"
        if not architecture.embedding_norm or architecture.shared_layer_norm:
            return "transformers' BERT has a LayerNorm of its own at the embeddings and at each residual"
        return None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
        """Build the model from the checkpoint."""
        import torch

        model = self.build(checkpoint).to(device=device, dtype=getattr(torch, dtype)).eval()
        return lambda batch: run(model, batch)

    def build(self, checkpoint: Checkpoint) -> nn.ModuleDict:
        """The module, float64, parameters loaded strictly."""
        import torch

        a = checkpoint.architecture
        model = _with_heads(a, _config(a, self.attention)).to(torch.float64)
        state = checkpoint.state_dict("float64")
        if "pretraining" in a.heads:
            state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
            state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
        model.load_state_dict(state, strict=True)
        return model


def _config(a: Any, attention: str) -> Any:
    from transformers import BertConfig

    sizes = {k: v for k, v in a.as_dict().items() if k not in ("heads", "pooler", "embedding_norm", "shared_layer_norm")}
    return BertConfig(**sizes, attn_implementation=attention)


def _with_heads(a: Any, config: Any) -> nn.ModuleDict:
    """BertModel under the name `bert`, and each head under Hugging Face's name for it."""
    from torch import nn
    from transformers import BertModel
    from transformers.models.bert.modeling_bert import BertPreTrainingHeads

    parts: dict[str, nn.Module] = {"bert": BertModel(config, add_pooling_layer=a.pooler)}
    if "pretraining" in a.heads:
        parts["cls"] = BertPreTrainingHeads(config)
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
        from torch.nn.functional import cross_entropy

        outputs = model["bert"](batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
        losses = {}
        if "cls" in model:
            tokens, pairs = model["cls"](outputs.last_hidden_state, outputs.pooler_output)
            if batch.labels is not None and batch.next_sentence_label is not None:
                masked_lm = cross_entropy(tokens.flatten(0, 1), batch.labels.flatten())
                next_sentence = cross_entropy(pairs, batch.next_sentence_label)
                losses = {
                    "cls.predictions.loss": masked_lm,
                    "cls.seq_relationship.loss": next_sentence,
                    "cls.loss": masked_lm + next_sentence,
                }
        if "classifier" in model:
            logits = model["classifier"](outputs.pooler_output)
            if batch.class_labels is not None:
                losses["classifier.loss"] = cross_entropy(logits, batch.class_labels)
        return losses

    return captured(model, taps(model), forward)


hf_eager = HuggingFace("eager")
hf_sdpa = HuggingFace("sdpa")
