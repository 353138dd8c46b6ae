"""Backward passes that are wrong although the forward pass is right, planted in Hugging Face's modules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance import Checkpoint, load_golden
from conformance.benchmarks.gradients.correct import GOLDEN
from conformance.faults.gradients import SMOOTHING
from conformance.implementations.hugging_face import BertWithHeads, HuggingFace

LAYER = 1
TOKENS = int(sum(batch.mask.sum() for batch in load_golden(GOLDEN).batches.values()))
_PATH = f"encoder.layer.{LAYER}"


@dataclass(frozen=True)
class Wrong:
    """A mistake in a backward pass.

    Attributes:
        plant: changes the model.
        at: names of the gradients whose own step is wrong.
        named: name of the fault by which the mistake is found.
        golden: name of the golden on which it can be made.
    """

    plant: Callable[[Any], None]
    at: tuple[str, ...]
    named: str
    golden: str = GOLDEN


class WithWrongBackward(HuggingFace):
    """Hugging Face's BERT with a mistake in its backward pass."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__("eager", "planted")
        self.wrong = wrong

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
        """Return the module with the mistake planted."""
        model = super().module(checkpoint, device, dtype)
        self.wrong.plant(model)
        return model


class _Rewritten(torch.autograd.Function):
    """A function with the value of one function and the gradient of another."""

    @staticmethod
    def forward(context: Any, x: Tensor, value: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        context.save_for_backward(x)
        context.gradient = gradient
        return value(x)

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> Any:
        (x,) = context.saved_tensors
        return context.gradient(x, upstream), None, None


def rewritten(x: Tensor, value: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return value(x), with the gradient gradient(x, upstream)."""
    apply: Any = _Rewritten.apply
    found: Tensor = apply(x, value, gradient)
    return found


def of(x: Tensor, upstream: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient of a function at x."""
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(inner), inner, upstream)
    return found


def layer(model: Any) -> Any:
    """Return the layer that is changed."""
    return model["bert"].encoder.layer[LAYER]


# Norms.


class _Norm(nn.Module):
    """A LayerNorm whose mean or variance is detached."""

    def __init__(self, norm: nn.LayerNorm, *, mean: bool = False, variance: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.mean, self.variance = norm.weight, norm.bias, norm.eps, mean, variance

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        mean, variance = mean.detach() if self.mean else mean, variance.detach() if self.variance else variance
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class _NormOf(nn.Module):
    """A LayerNorm with another gradient of its input."""

    def __init__(self, norm: nn.LayerNorm, gradient: Callable[[nn.LayerNorm, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.norm, self.gradient = norm.weight, norm.bias, norm, gradient

    def forward(self, x: Tensor) -> Tensor:
        normal = rewritten(x, partial(_normal, self.norm), partial(self.gradient, self.norm))
        return normal * self.weight + self.bias


def _normal(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, eps=norm.eps)


def _without_gamma(norm: nn.LayerNorm, x: Tensor, upstream: Tensor) -> Tensor:
    return of(x, upstream / norm.weight, partial(_normal, norm))


def _straight_through(norm: nn.LayerNorm, x: Tensor, upstream: Tensor) -> Tensor:
    return upstream / norm.weight


def _norm(make: Callable[[nn.LayerNorm], nn.Module]) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        layer(model).output.LayerNorm = make(layer(model).output.LayerNorm)

    return plant


# Attention.


class _Attention(nn.Module):
    """A self-attention with a part replaced; projections and names are Hugging Face's."""

    def __init__(
        self,
        original: Any,
        softmax: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1),
        scaled: Callable[[Tensor, float], Tensor] = lambda s, scale: s * scale,
        detached: str = "",
    ) -> None:
        super().__init__()
        self.query, self.key, self.value = original.query, original.key, original.value
        self.heads, self.softmax, self.scaled, self.detached = original.num_attention_heads, softmax, scaled, detached

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor]:
        def projected(name: str) -> Tensor:
            x = getattr(self, name)(hidden.detach() if name == self.detached else hidden)
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-any-return]

        query, key, value = (projected(name) for name in ("query", "key", "value"))
        scores = self.scaled(query @ key.transpose(-1, -2), query.shape[-1] ** -0.5)
        probs = self.softmax(scores if attention_mask is None else scores + attention_mask)
        return (probs @ value).transpose(1, 2).flatten(2), probs


def _attention(**parts: Any) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        layer(model).attention.self = _Attention(layer(model).attention.self, **parts)

    return plant


def _softmax(gradient: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any], None]:
    """Replace the gradient of the softmax by `gradient(p, upstream)` of its result p."""
    return _attention(softmax=lambda s: rewritten(s, lambda x: x.softmax(-1), lambda x, w: gradient(x.softmax(-1), w)))


def _scale(power: float) -> Callable[[Any], None]:
    return _attention(scaled=lambda s, scale: rewritten(s, lambda x: x * scale, lambda _, w: w * scale**power))


# The feed-forward network, residuals and embeddings.


def _function(gradient: Callable[[Tensor, Tensor], Tensor], value: Callable[[Tensor], Tensor] = F.gelu) -> Callable[[Any], None]:
    class Function(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return rewritten(x, value, gradient)

    def plant(model: Any) -> None:
        layer(model).intermediate.intermediate_act_fn = Function()

    return plant


def _replaced(path: str, **inputs: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Change a module's inputs, selected by `first` and `second`, before it is called."""

    def plant(model: Any) -> None:
        def change(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            named = zip(("first", "second"), args, strict=False)
            return tuple(inputs[name](x) if name in inputs else x for name, x in named)

        model.get_submodule(path).register_forward_pre_hook(change)

    return plant


def _detached_table(model: Any) -> None:
    table = model["bert"].embeddings.word_embeddings
    table.forward = lambda ids: F.embedding(ids, table.weight.detach())


def _detached_decoder(model: Any) -> None:
    decoder = model["cls"]["predictions"].decoder
    decoder.forward = lambda x: F.linear(x, decoder.weight.detach(), decoder.bias)


def _frozen(path: str) -> Callable[[Any], None]:
    def plant(model: Any) -> None:
        model.get_parameter(path).requires_grad_(False)

    return plant


def _hooked(path: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Change the gradient of a parameter before it is stored."""

    def plant(model: Any) -> None:
        hook: Any = model.get_parameter(path).register_hook
        hook(change)

    return plant


def _first_row(model: Any) -> None:
    dense = layer(model).intermediate.dense

    def forward(x: Tensor) -> Tensor:
        others = F.linear(x, dense.weight.detach(), dense.bias.detach())
        return torch.cat([F.linear(x[:1], dense.weight, dense.bias), others[1:]])

    dense.forward = forward


def _logits(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any], None]:
    """Replace the gradient of the masked-LM head's logits, given the logits and the upstream gradient."""

    def plant(model: Any) -> None:
        head = model["cls"]["predictions"]
        head.register_forward_hook(lambda _m, _a, logits: rewritten(logits, lambda x: x.clone(), change))

    return plant


def _of_labelled(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Any], None]:
    """Replace the gradient of the logits by `change(p, onehot, is_labelled) / N`, N the number of labelled tokens.

    It is computed in float64 and rounded once, so that only the mistake is visible.
    """

    def changed(logits: Tensor, upstream: Tensor) -> Tensor:
        is_labelled = (upstream != 0).any(-1, keepdim=True).double()
        count = is_labelled.sum().clamp(min=1.0)  # 0 where another loss is differentiated
        probabilities = logits.double().softmax(-1) * is_labelled
        onehot = (probabilities - upstream.double() * count).round()
        return (change(probabilities, onehot, is_labelled) / count).to(upstream.dtype)

    return _logits(changed)


def _smoothed(probabilities: Tensor, onehot: Tensor, is_labelled: Tensor) -> Tensor:
    return probabilities - (1.0 - SMOOTHING) * onehot - SMOOTHING / onehot.shape[-1] * is_labelled


_tanh_gelu = partial(F.gelu, approximate="tanh")
_BEFORE = f"{_PATH}.attention.output.LayerNorm.grad"
_ENTRY = f"encoder.layer.{LAYER - 1}.output.LayerNorm.grad"
_TABLES = "bert.embeddings.{}_embeddings.weight"
_DENSE = f"bert.{_PATH}.output.dense"


def _at_norm(plant: Callable[[Any], None], named: str) -> Wrong:
    return Wrong(plant, (f"{_PATH}.output.dropout.grad",), named)


def _at_scores(plant: Callable[[Any], None], named: str) -> Wrong:
    return Wrong(plant, (f"{_PATH}.attention.self.query.grad", f"{_PATH}.attention.self.key.grad"), named)


def _at_function(gradient: Callable[[Tensor, Tensor], Tensor], named: str, value: Callable[[Tensor], Tensor] = F.gelu) -> Wrong:
    return Wrong(_function(gradient, value), (f"{_PATH}.intermediate.dense.grad",), named)


def _at_parameter(plant: Callable[[str], Callable[[Any], None]], path: str, named: str) -> Wrong:
    return Wrong(plant(path), (f"{path}.grad",), named)


def _at_logits(plant: Callable[[Any], None], named: str) -> Wrong:
    return Wrong(plant, ("cls.predictions.decoder.grad",), named)


def _times(factor: float) -> Callable[[str], Callable[[Any], None]]:
    return lambda path: _hooked(path, lambda gradient: factor * gradient)


WRONG: Mapping[str, Wrong] = {
    "mean detached": _at_norm(_norm(partial(_Norm, mean=True)), "gradient-norm-mean-detached"),
    "variance detached": _at_norm(_norm(partial(_Norm, variance=True)), "gradient-norm-variance-detached"),
    "statistics detached": _at_norm(_norm(partial(_Norm, mean=True, variance=True)), "gradient-norm-statistics-detached"),
    "gamma left out": _at_norm(_norm(partial(_NormOf, gradient=_without_gamma)), "gradient-norm-scale-missing"),
    "norm straight through": _at_norm(_norm(partial(_NormOf, gradient=_straight_through)), "gradient-norm-identity"),
    "softmax by its diagonal": _at_scores(_softmax(lambda p, w: p * (1 - p) * w), "gradient-softmax-diagonal"),
    "softmax without its sum": _at_scores(_softmax(lambda p, w: p * w), "gradient-softmax-sum-missing"),
    "softmax straight through": _at_scores(_softmax(lambda _, w: w), "gradient-softmax-identity"),
    "scale left out": _at_scores(_scale(0.0), "gradient-scale-missing"),
    "scale twice": _at_scores(_scale(2.0), "gradient-scale-twice"),
    "tanh-GELU's derivative": _at_function(lambda x, w: of(x, w, _tanh_gelu), "gradient-gelu-tanh"),
    "erf-GELU's derivative": replace(_at_function(lambda x, w: of(x, w, F.gelu), "gradient-gelu-erf", _tanh_gelu), golden="tanh"),
    "gate detached": _at_function(lambda x, w: w * (1 + torch.erf(x / 2**0.5)) / 2, "gradient-gelu-without-density"),
    "GELU straight through": _at_function(lambda _, w: w, "gradient-function-identity"),
    "ReLU's derivative": _at_function(lambda x, w: w * (x > 0), "gradient-function-relu"),
    "skip detached": Wrong(_replaced(f"bert.{_PATH}.output", second=lambda x: x.detach()), (_BEFORE,), "gradient-of-skip-missing"),
    "skip twice": Wrong(
        _replaced(f"bert.{_PATH}.output", second=lambda x: 2 * x - x.detach()), (_BEFORE,), "gradient-of-skip-doubled"
    ),
    "MLP's input detached": Wrong(
        _replaced(f"bert.{_PATH}.intermediate", first=lambda x: x.detach()), (_BEFORE,), "gradient-through-mlp-missing"
    ),
    **{
        f"{name}'s input detached": Wrong(_attention(detached=name), (_ENTRY,), f"gradient-through-{name}-missing")
        for name in ("query", "key", "value")
    },
    "look-up detached": Wrong(_detached_table, (f"{_TABLES.format('word')}.grad",), "gradient-of-lookup-lost"),
    "decoder detached": Wrong(_detached_decoder, (f"{_TABLES.format('word')}.grad",), "gradient-of-decoder-lost"),
    "positions frozen": _at_parameter(_frozen, _TABLES.format("position"), "gradient-missing"),
    "token types frozen": _at_parameter(_frozen, _TABLES.format("token_type"), "gradient-missing"),
    "bias three times": _at_parameter(_times(3.0), f"{_DENSE}.bias", "gradient-scaled"),
    "weight averaged over rows": _at_parameter(_times(1 / 6), f"{_DENSE}.weight", "gradient-averaged-over-rows"),
    "weight averaged over tokens": _at_parameter(_times(1 / TOKENS), f"{_DENSE}.weight", "gradient-averaged-over-tokens"),
    "first row alone": Wrong(
        _first_row, tuple(f"bert.{_PATH}.intermediate.dense.{role}.grad" for role in ("weight", "bias")), "gradient-of-first-row"
    ),
    "loss scale left": _at_logits(_logits(lambda _, w: 1024.0 * w), "gradient-scaled"),
    "labels smoothed": _at_logits(_of_labelled(_smoothed), "gradient-label-smoothing"),
    "label not subtracted": _at_logits(_of_labelled(lambda p, *_: p), "gradient-without-label"),
    "averaged over all positions": _at_logits(
        _of_labelled(lambda p, onehot, is_labelled: (p - onehot) * is_labelled.mean()), "gradient-averaged-over-all"
    ),
    "summed over the labels": _at_logits(
        _of_labelled(lambda p, onehot, is_labelled: (p - onehot) * is_labelled.sum()), "gradient-summed"
    ),
}
