"""Backward passes that are wrong although the forward pass is right, planted in Hugging Face's modules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conformance import Checkpoint, load_golden
from conformance.benchmarks.gradients.correct import GOLDEN
from conformance.benchmarks.planted import plant
from conformance.faults.gradients import SMOOTHING
from conformance.implementations.hugging_face import BertWithHeads, HuggingFace

LAYER = 1
TOKENS = int(sum(batch.mask.sum() for batch in load_golden(GOLDEN).batches.values()))
_PATH = f"encoder.layer.{LAYER}"


@dataclass(frozen=True)
class Wrong:
    """A mistake in a backward pass.

    Attributes:
        module: path of the changed module.
        expression: what it returns (`benchmarks.planted`).
        at: names of the gradients whose own step is wrong.
        named: name of the fault by which the mistake is named.
        golden: name of the golden on which it can be made.
    """

    module: str
    expression: str
    at: tuple[str, ...]
    named: str
    golden: str = GOLDEN

    def plant(self, model: Any) -> None:
        """Change the model."""
        plant(model, self.module, self.expression, labelled=labelled, smoothing=SMOOTHING, tokens=TOKENS)


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


def labelled(logits: Tensor, upstream: Tensor, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Return `change(p, onehot, is_labelled) / N` in place of the gradient of the logits, N the number of labelled tokens.

    It is computed in float64 and rounded once, so that only the mistake is visible.
    """
    is_labelled = (upstream != 0).any(-1, keepdim=True).double()
    count = is_labelled.sum().clamp(min=1.0)  # 0 where another loss is differentiated
    probabilities = logits.double().softmax(-1) * is_labelled
    onehot = (probabilities - upstream.double() * count).round()
    return (change(probabilities, onehot, is_labelled) / count).to(upstream.dtype)


def _norm(expression: str, named: str) -> Wrong:
    return Wrong(f"bert.{_PATH}.output.LayerNorm", expression, (f"{_PATH}.output.dropout.grad",), named)


def _attention(changed: str, named: str) -> Wrong:
    at = (f"{_PATH}.attention.self.query.grad", f"{_PATH}.attention.self.key.grad")
    return Wrong(f"bert.{_PATH}.attention.self", f"attended(self, x, attention_mask, {changed})", at, named)


def _softmax(gradient: str, named: str) -> Wrong:
    """Return the softmax with another gradient, an expression of its result p and of the upstream gradient w."""
    return _attention(f"softmax=lambda s: rewritten(s, softmax, lambda s, w: (lambda p: {gradient})(softmax(s)))", named)


def _scale(power: int, named: str) -> Wrong:
    return _attention(f"scaled=lambda s, c: rewritten(s, lambda s: s * c, lambda s, w: w * c**{power})", named)


def _function(gradient: str, named: str, value: str = "gelu", golden: str = GOLDEN) -> Wrong:
    """Return the function with another gradient, an expression of its argument x and of the upstream gradient w."""
    expression = f"rewritten(x, {value}, lambda x, w: {gradient})"
    return Wrong(f"bert.{_PATH}.intermediate.intermediate_act_fn", expression, (f"{_PATH}.intermediate.dense.grad",), named, golden)


def _residual(module: str, expression: str, named: str) -> Wrong:
    return Wrong(f"bert.{_PATH}.{module}", expression, (f"{_PATH}.attention.output.LayerNorm.grad",), named)


def _parameter(module: str, expression: str, named: str, *roles: str) -> Wrong:
    return Wrong(module, expression, tuple(f"{module}.{role}.grad" for role in roles or ("weight",)), named)


def _logits(expression: str, named: str) -> Wrong:
    return Wrong("cls.predictions", expression, ("cls.predictions.decoder.grad",), named)


def _labelled(change: str, named: str) -> Wrong:
    """Return another gradient of the masked-LM loss, an expression of p, the one-hot labels y and whether a token has a label n."""
    return _logits(f"rewritten(right(x), torch.clone, lambda x, w: labelled(x, w, lambda p, y, n: {change}))", named)


_NORMAL, _LOOKUP = "lambda x: layer_norm(x, eps=eps)", "F.embedding(x, weight.detach())"
_WORDS, _POSITIONS, _TYPES = (f"bert.embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type"))
_INNER, _DENSE = f"bert.{_PATH}.intermediate.dense", f"bert.{_PATH}.output.dense"

# fmt: off
WRONG: Mapping[str, Wrong] = {
    "mean detached": _norm(
        "(x - x.mean(-1, keepdim=True).detach()) * torch.rsqrt(variance(x) + eps) * weight + bias", "gradient-norm-mean-detached"),
    "variance detached": _norm(
        "centred(x) * torch.rsqrt(variance(x).detach() + eps) * weight + bias", "gradient-norm-variance-detached"),
    "statistics detached": _norm(
        "(x - x.mean(-1, keepdim=True).detach()) * torch.rsqrt(variance(x).detach() + eps) * weight + bias",
        "gradient-norm-statistics-detached"),
    "gamma left out": _norm(
        f"rewritten(x, {_NORMAL}, lambda x, w: of({_NORMAL}, x, w / weight)) * weight + bias", "gradient-norm-scale-missing"),
    "norm straight through": _norm(
        f"rewritten(x, {_NORMAL}, lambda x, w: w / weight) * weight + bias", "gradient-norm-identity"),
    "softmax by its diagonal": _softmax("p * (1 - p) * w", "gradient-softmax-diagonal"),
    "softmax without its sum": _softmax("p * w", "gradient-softmax-sum-missing"),
    "softmax straight through": _softmax("w", "gradient-softmax-identity"),
    "scale left out": _scale(0, "gradient-scaled"),
    "scale twice": _scale(2, "gradient-scaled"),
    "tanh-GELU's derivative": _function("of(tanh_gelu, x, w)", "gradient-gelu-tanh"),
    "erf-GELU's derivative": _function("of(gelu, x, w)", "gradient-gelu-erf", "tanh_gelu", "tanh"),
    "gate detached": _function("w * (1 + erf(x / 2**0.5)) / 2", "gradient-gelu-without-density"),
    "GELU straight through": _function("w", "gradient-function-identity"),
    "ReLU's derivative": _function("w * (x > 0)", "gradient-function-relu"),
    "skip detached": _residual("output", "right(x, y.detach())", "gradient-of-skip-missing"),
    "skip twice": _residual("output", "right(x, 2 * y - y.detach())", "gradient-of-skip-doubled"),
    "MLP's input detached": _residual("intermediate", "right(x.detach())", "gradient-through-mlp-missing"),
    **{f"{name}'s input detached": Wrong(
        f"bert.{_PATH}.attention.self.{name}", "right(x.detach())", (f"encoder.layer.{LAYER - 1}.output.LayerNorm.grad",),
        f"gradient-through-{name}-missing") for name in ("query", "key", "value")},
    "look-up detached": _parameter(_WORDS, _LOOKUP, "gradient-of-lookup-lost"),
    "decoder detached": Wrong(
        "cls.predictions.decoder", "linear(x, weight.detach(), bias)", (f"{_WORDS}.weight.grad",), "gradient-of-decoder-lost"),
    "positions frozen": _parameter(_POSITIONS, _LOOKUP, "gradient-missing"),
    "token types frozen": _parameter(_TYPES, _LOOKUP, "gradient-missing"),
    "bias three times": _parameter(_DENSE, "linear(x, weight, passed(bias, lambda w: 3 * w))", "gradient-scaled", "bias"),
    "weight averaged over rows": _parameter(
        _DENSE, "linear(x, passed(weight, lambda w: w / len(x)), bias)", "gradient-scaled"),
    "weight averaged over tokens": _parameter(
        _DENSE, "linear(x, passed(weight, lambda w: w / tokens), bias)", "gradient-scaled"),
    "first row alone": _parameter(
        _INNER, "cat([right(x[:1]), linear(x[1:], weight.detach(), bias.detach())])", "gradient-of-first-row", "weight", "bias"),
    "loss scale left": _logits("passed(right(x), lambda w: 1024 * w)", "gradient-scaled"),
    "labels smoothed": _labelled("p - (1 - smoothing) * y - smoothing / y.shape[-1] * n", "gradient-label-smoothing"),
    "label not subtracted": _labelled("p", "gradient-without-label"),
    "averaged over all positions": _labelled("(p - y) * n.mean()", "gradient-scaled"),
    "summed over the labels": _labelled("(p - y) * n.sum()", "gradient-scaled"),
}
# fmt: on
