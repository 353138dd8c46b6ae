"""Parameters and hooks that the checkpoint lacks, such as LoRA, a prompt or a gate, are named where a module fails."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import TorchImplementation, check
from conformance.implementations.making_bert import Bert, build, making_bert
from conformance.mapping.mapped import MappedModule

ADAPTER = "an adapter is active that the checkpoint lacks: merge it, in peft by `merge_and_unload()`, or remove it;"


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


@pytest.mark.parametrize(("kind", "up", "first"), [(_InTheLayer, 0.1, "lora_A"), (_Bottleneck, 0.1, "lora_down")])
def test_an_active_adapter_is_named(kind: type, up: float, first: str) -> None:
    result = check(_adapted(kind, up), "tiny", depth="screen")
    assert result.outcome == "fail"
    assert result.note.startswith(f"{ADAPTER} the result is another without transformer.0.")
    assert first in result.note


@pytest.mark.parametrize(("kind", "up"), [(_InTheLayer, 0.0), (_Bottleneck, 0.0), (_Disabled, 0.1)])
def test_an_adapter_without_effect_conforms(kind: type, up: float) -> None:
    result = check(_adapted(kind, up), "tiny", depth="screen")
    assert (result.outcome, result.note) == ("pass", "")


class _Prompted(Bert):
    """A BERT with three learnt vectors before the embedded tokens, whose results are removed."""

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Any = None) -> Tensor:
        embedded = self.embedding(input_ids, token_type_ids)
        hidden = torch.cat([self.prompt.expand(len(embedded), -1, -1), embedded], 1)
        for layer in self.transformer:
            hidden = layer(hidden, nn.functional.pad(mask, (3, 0), value=1))
        return self.lm_head(hidden[:, 3:])

    @classmethod
    def built(cls, a: Any) -> "_Prompted":
        model = build(a)
        model.__class__, model.prompt = cls, nn.Parameter(torch.randn(3, a.hidden_size))
        assert isinstance(model, cls)
        return model


def test_a_prompt_is_named() -> None:
    result = check(replace(making_bert, build=_Prompted.built, ignored=("prompt",)), "tiny", depth="screen")
    words = "the result is another without prompt, of which the checkpoint has nothing"
    assert (result.outcome, result.note) == ("fail", f"{ADAPTER} {words}")


def _hooked(factor: float) -> TorchImplementation:
    def made(a: Any) -> nn.Module:
        model: Any = build(a)
        model.transformer[1].register_forward_hook(lambda _module, _inputs, output: factor * output)
        return model

    return replace(making_bert, build=made)


def test_a_forward_hook_that_changes_values_is_named_and_one_that_does_not_conforms() -> None:
    result = check(_hooked(1.1), "tiny", depth="screen")
    assert (result.outcome, result.note) == ("fail", "forward hooks change the result, of transformer.1: remove them")
    assert check(_hooked(1.0), "tiny", depth="screen").outcome == "pass"


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
    assert result.note.startswith(f"{ADAPTER} the result is another without encoder.layer.0.attention.self.query")


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
