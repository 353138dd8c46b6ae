"""An adapter that the checkpoint lacks, such as LoRA, fails with one sentence where it is active, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import TorchImplementation, check
from conformance.implementations.making_bert import build, making_bert
from conformance.mapping.mapped import MappedModule


class _InTheLayer(nn.Linear):
    """LoRA as in loralib: the matrices are the linear layer's."""

    scale = 0.5

    def adapt(self, up: float) -> "_InTheLayer":
        self.lora_A = nn.Parameter(torch.randn(3, self.in_features))
        self.lora_B = nn.Parameter(up * torch.randn(self.out_features, 3))
        return self

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)


class _Disabled(_InTheLayer):
    scale = 0.0


class _Bottleneck(nn.LayerNorm):
    """An adapter after a norm, with matrices of (in, out)."""

    def adapt(self, up: float) -> "_Bottleneck":
        (width,) = self.normalized_shape
        self.lora_down = nn.Parameter(torch.randn(width, 2))
        self.lora_up = nn.Parameter(up * torch.randn(2, width))
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x + torch.relu(x @ self.lora_down) @ self.lora_up


def _adapted(kind: type, up: float) -> TorchImplementation:
    def made(a: Any) -> nn.Module:
        model = build(a)
        for layer in model.transformer:  # type: ignore[union-attr]
            part: Any = layer.residual if kind is _Bottleneck else layer.attention.attention
            name = "layer_norm" if kind is _Bottleneck else "project_value"
            inner = getattr(part, name)
            sizes = inner.normalized_shape if kind is _Bottleneck else (inner.in_features, inner.out_features)
            own = kind(sizes, a.layer_norm_eps) if kind is _Bottleneck else kind(*sizes)
            setattr(part, name, own.adapt(up))
        return model

    return replace(making_bert, build=made, ignored=("*.lora_*",))


@pytest.mark.parametrize("kind", [_InTheLayer, _Bottleneck])
def test_an_active_adapter_is_named_and_nothing_is_judged(kind: type) -> None:
    result = check(_adapted(kind, 0.1), "tiny")
    assert result.outcome == "fail"
    assert not result.verdicts
    assert result.reason.startswith("an adapter is active that the checkpoint lacks: merge it. transformer.0.")


@pytest.mark.parametrize(("kind", "up"), [(_InTheLayer, 0.0), (_Bottleneck, 0.0), (_Disabled, 0.1)])
def test_an_adapter_without_effect_conforms(kind: type, up: float) -> None:
    result = check(_adapted(kind, up), "tiny", depth="screen")
    assert (result.outcome, result.note) == ("pass", "")


def test_a_head_of_few_classes_that_the_checkpoint_lacks_is_no_adapter() -> None:
    class Classifying(nn.Module):
        def __init__(self, inner: nn.Module, width: int) -> None:
            super().__init__()
            self.inner, self.first, self.second = inner, nn.Linear(width, 3), nn.Linear(width, 2)

        def forward(self, *inputs: Tensor) -> Any:
            logits = self.inner(*inputs)
            return logits, self.first.weight.sum() + self.second.weight.sum()

    def inside(key: Any) -> Any:
        return f"inner.{key}" if isinstance(key, str) else replace(key, path=f"inner.{key.path}")

    wrapped = replace(
        making_bert,
        build=lambda a: Classifying(build(a), a.hidden_size),
        parameters={inside(key): value for key, value in making_bert.parameters.items()},
        activations={inside(key): value for key, value in making_bert.activations.items()},
        ignored=("first.*", "second.*"),
    )
    assert check(wrapped, "tiny", depth="screen").outcome == "pass"


def test_a_mapped_module_with_an_active_adapter_is_named() -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    from conformance import golden_of, load_golden

    tiny = load_golden("tiny")
    a = tiny.checkpoint.architecture
    sizes: dict[str, Any] = {name: getattr(a, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    sizes |= {name: getattr(a, name) for name in ("num_attention_heads", "intermediate_size", "max_position_embeddings")}
    model = transformers.BertModel(transformers.BertConfig(**sizes, type_vocab_size=a.type_vocab_size)).eval()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["query"], init_lora_weights=False))
    result = check(MappedModule(adapted.base_model.model.eval(), "adapted"), golden_of("own", tiny.checkpoint, tiny.batches))
    assert result.outcome == "fail"
    assert result.reason.startswith(
        "an adapter is active that the checkpoint lacks: merge it. encoder.layer.0.attention.self.query"
    )
