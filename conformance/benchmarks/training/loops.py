"""Correct and wrong training loops of `making-bert`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance import TorchBatch, TorchImplementation, Training, Unsupported
from conformance.implementations.making_bert import Bert, making_bert

Parameters = Iterable[nn.Parameter]


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1


def _adamw(groups: Any, training: Training, **options: Any) -> torch.optim.Optimizer:
    if not training.bias_correction:
        raise Unsupported("torch's AdamW corrects its moments")
    betas = (training.adam_beta1, training.adam_beta2)
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, **options)


def _clip(parameters: Parameters, c: float) -> None:
    nn.utils.clip_grad_norm_(list(parameters), c)


def _backward(model: Bert, batch: TorchBatch) -> None:
    torch.autograd.backward(loss(model, batch))


def loss(model: Bert, batch: TorchBatch) -> Tensor:
    """Return the masked-LM loss."""
    assert batch.labels is not None
    assert batch.token_type_ids is not None
    logits = model(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)


@dataclass(frozen=True)
class Loop:
    """A training loop, part by part.

    Attributes:
        optimizer: returns an optimizer for parameter groups and settings.
        decayed: whether weight decay applies to a parameter.
        clip: clips the gradients of parameters by c.
        rate: the learning rate in step 1, 2, …
        backward: runs the forward and backward passes of a batch.
        trained: whether the optimizer receives a parameter.
        clears: whether gradients are set to 0 before each step.
    """

    optimizer: Callable[[Any, Training], torch.optim.Optimizer] = _adamw
    decayed: Callable[[str, Tensor], bool] = _is_matrix
    clip: Callable[[Parameters, float], None] = _clip
    rate: Callable[[Training, int], float] = Training.rate
    backward: Callable[[Bert, TorchBatch], None] = _backward
    trained: Callable[[str], bool] = lambda name: True
    clears: bool = True

    def __call__(self, model: Bert, training: Training) -> Callable[[TorchBatch], None]:
        """Return the step function of the loop, as for `TorchImplementation.train`."""
        model.train()
        named = [(name, p) for name, p in model.named_parameters() if self.trained(name)]
        groups = [
            {"params": [p for name, p in named if self.decayed(name, p) is with_decay], "weight_decay": decay}
            for with_decay, decay in ((True, training.weight_decay), (False, 0.0))
        ]
        optimizer = self.optimizer([group for group in groups if group["params"]], training)
        done = 0

        def step(batch: TorchBatch) -> None:
            nonlocal done
            done += 1
            if self.clears:
                optimizer.zero_grad()
            self.backward(model, batch)
            self.clip(model.parameters(), training.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = self.rate(training, done)
            optimizer.step()

        return step

    @property
    def candidate(self) -> TorchImplementation:
        """The candidate `making-bert` with this training loop."""
        return replace(making_bert, train=self, name="trained")


class ByHand(torch.optim.Optimizer):
    """Adam written out.

    `update(m, v, t)` returns the amount to subtract divided by η, and `decay(p, group)` returns the decayed parameter.
    """

    def __init__(self, groups: Any, training: Training, update: Any = None, decay: Any = None) -> None:
        super().__init__(groups, {"lr": training.learning_rate})
        self.training = training
        self.update = update or self.usual
        self.decay = decay or (lambda p, group: p * (1.0 - group["lr"] * group["weight_decay"]))

    def usual(self, m: Tensor, v: Tensor, t: int) -> Tensor:
        """Return m̂ / (√v̂ + ε), with or without bias correction."""
        first, second = self.corrections(t)
        return (m / first) / ((v / second).sqrt() + self.training.adam_epsilon)

    def corrections(self, t: int) -> tuple[float, float]:
        """Return 1 − β₁ᵗ and 1 − β₂ᵗ, or 1 without bias correction."""
        if not self.training.bias_correction:
            return 1.0, 1.0
        return 1.0 - self.training.adam_beta1**t, 1.0 - self.training.adam_beta2**t

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Ignores the closure.
        """Update all parameters that have a gradient."""
        b1, b2 = self.training.adam_beta1, self.training.adam_beta2
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m, v, t = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p)), state.get("t", 0) + 1
                m, v = b1 * m + (1.0 - b1) * p.grad, b2 * v + (1.0 - b2) * p.grad * p.grad
                self.state[p] = {"m": m, "v": v, "t": t}
                p.copy_(self.decay(p, group) - group["lr"] * self.update(m, v, t))


def _in_root(groups: Any, training: Training) -> torch.optim.Optimizer:
    made = ByHand(groups, training)
    epsilon = training.adam_epsilon
    made.update = lambda m, v, t: (m / made.corrections(t)[0]) / (v / made.corrections(t)[1] + epsilon).sqrt()
    return made


def _before_correction(groups: Any, training: Training) -> torch.optim.Optimizer:
    made = ByHand(groups, training)

    def update(m: Tensor, v: Tensor, t: int) -> Tensor:
        first, second = made.corrections(t)
        found: Tensor = (second**0.5 / first) * m / (v.sqrt() + training.adam_epsilon)
        return found

    made.update = update
    return made


def _correcting(*, corrects: bool) -> Callable[[Any, Training], torch.optim.Optimizer]:
    return lambda groups, training: ByHand(groups, replace(training, bias_correction=corrects))


def _with(**changes: Any) -> Callable[[Any, Training], torch.optim.Optimizer]:
    return lambda groups, training: ByHand(groups, replace(training, **changes))


def _coupled(groups: Any, training: Training) -> torch.optim.Optimizer:
    if not training.bias_correction:
        raise Unsupported("torch's Adam corrects its moments")
    betas = (training.adam_beta1, training.adam_beta2)
    return torch.optim.Adam(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon)


def _not_scaled(groups: Any, training: Training) -> torch.optim.Optimizer:
    return ByHand(groups, training, decay=lambda p, group: p * (1.0 - group["weight_decay"]))


def _tenth_of_decay(groups: Any, training: Training) -> torch.optim.Optimizer:
    return ByHand(groups, training, decay=lambda p, group: p * (1.0 - 0.1 * group["lr"] * group["weight_decay"]))


def _clip_each(parameters: Parameters, c: float) -> None:
    for parameter in parameters:
        nn.utils.clip_grad_norm_([parameter], c)


def _clip_by_value(parameters: Parameters, c: float) -> None:
    nn.utils.clip_grad_value_(list(parameters), c)


def _clip_after_tensorflow(parameters: Parameters, c: float) -> None:
    """Scale gradients to g c / max(‖g‖, c), as tf.clip_by_global_norm does."""
    found = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([g.square().sum() for g in found]).sum().sqrt()
    for g in found:
        g.mul_(c / torch.clamp(norm, min=c))


def _labelled_rows(batch: TorchBatch) -> list[tuple[TorchBatch, int]]:
    """Return micro-batches of one row with their numbers of labelled tokens; rows without labels are left out."""
    whole = batch.numpy()
    rows = [whole.cut(slice(i, i + 1)).on(str(batch.input_ids.device)) for i in range(whole.size)]
    counted = [(row, int((row.labels != -100).sum())) for row in rows if row.labels is not None]
    return [(row, count) for row, count in counted if count]


def _by_micro_batches(model: Bert, batch: TorchBatch) -> None:
    """Accumulate gradients over micro-batches, each weighted by its share of the labelled tokens."""
    rows = _labelled_rows(batch)
    for row, count in rows:
        torch.autograd.backward(loss(model, row) * (count / sum(each for _, each in rows)))


def _mean_of_means(model: Bert, batch: TorchBatch) -> None:
    rows = _labelled_rows(batch)
    for row, _ in rows:
        torch.autograd.backward(loss(model, row) / len(rows))


def _divided_twice(model: Bert, batch: TorchBatch) -> None:
    rows = _labelled_rows(batch)
    for row, count in rows:
        torch.autograd.backward(loss(model, row) * (count / sum(each for _, each in rows)) / len(rows))


def _smoothed(model: Bert, batch: TorchBatch) -> None:
    assert batch.labels is not None
    assert batch.token_type_ids is not None
    logits = model(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=0.1))


def _over_all_positions(model: Bert, batch: TorchBatch) -> None:
    assert batch.labels is not None
    torch.autograd.backward(loss(model, batch) * float((batch.labels != -100).float().mean()))


def _without_mask(model: Bert, batch: TorchBatch) -> None:
    torch.autograd.backward(loss(model, replace(batch.numpy(), attention_mask=None).on(str(batch.input_ids.device))))


@dataclass(frozen=True)
class WrongGradient:
    """A loop whose gradients are not those of its loss, and part of the message about them."""

    loop: Loop
    said: str


_NOT, _TIMES = "not the gradient of cls.predictions.loss", "times that of cls.predictions.loss"
WRONG_GRADIENTS: Mapping[str, WrongGradient] = {
    "gradients that are not cleared": WrongGradient(Loop(clears=False), "zero_grad"),
    "divided twice by the number of micro-batches": WrongGradient(Loop(backward=_divided_twice), _TIMES),
    "averaged over all positions": WrongGradient(Loop(backward=_over_all_positions), _TIMES),
    # huggingface/blog#2414: micro-batches with different numbers of labelled tokens.
    "a mean of the micro-batches' means": WrongGradient(Loop(backward=_mean_of_means), _NOT),
    "label smoothing": WrongGradient(Loop(backward=_smoothed), _NOT),
    "no mask": WrongGradient(Loop(backward=_without_mask), _NOT),
}


@dataclass(frozen=True)
class WrongLoop:
    """A mistake in a training loop.

    Attributes:
        loop: the loop.
        named: name of the fault that explains most failures.
        by_schedule: whether the check `schedule` must find it, instead of `optimizer-step`.
    """

    loop: Loop
    named: str
    by_schedule: bool = False


WRONG: Mapping[str, WrongLoop] = {
    "epsilon in the root": WrongLoop(Loop(_in_root), "adam-epsilon-in-root"),
    "epsilon before the correction": WrongLoop(Loop(_before_correction), "adam-epsilon-before-correction"),
    "bias correction missing": WrongLoop(Loop(_correcting(corrects=False)), "adam-correction-missing"),
    "bias corrected for BERT's own Adam": WrongLoop(Loop(_correcting(corrects=True)), "adam-corrected"),
    "decay in the gradient": WrongLoop(Loop(_coupled), "decay-coupled"),
    "no decay": WrongLoop(Loop(decayed=lambda *_: False), "decay-missing"),
    "decay on biases and norms": WrongLoop(Loop(decayed=lambda *_: True), "decay-on-all"),
    "decay not scaled": WrongLoop(Loop(_not_scaled), "decay-not-scaled"),
    "no clipping": WrongLoop(Loop(clip=lambda *_: None), "clip-missing"),
    "clipped tensor by tensor": WrongLoop(Loop(clip=_clip_each), "clip-by-parameter"),
    "clipped by value": WrongLoop(Loop(clip=_clip_by_value), "clip-by-value"),
    "a parameter that is not trained": WrongLoop(Loop(trained=lambda name: "mlp2.bias" not in name), "parameter-not-updated"),
    "torch's epsilon": WrongLoop(Loop(_with(adam_epsilon=1e-8)), "adam-epsilon"),
    "another beta1": WrongLoop(Loop(_with(adam_beta1=0.8)), "adam-beta1"),
    "another beta2": WrongLoop(Loop(_with(adam_beta2=0.98)), "adam-beta2"),
    "a tenth of the decay": WrongLoop(Loop(_tenth_of_decay), "decay-other"),
    "warm-up one step ahead": WrongLoop(Loop(rate=lambda training, t: training.rate(t + 1)), "rate-one-step-ahead", True),
    "warm-up one step behind": WrongLoop(Loop(rate=lambda training, t: training.rate(max(t - 1, 1))), "rate-one-step-behind", True),
    "no schedule": WrongLoop(Loop(rate=lambda training, _: training.learning_rate), "rate-constant", True),
    "no warm-up": WrongLoop(
        Loop(rate=lambda training, t: training.learning_rate * (1.0 - (t - 1) / training.max_steps)), "warmup-missing", True
    ),
    "half the rate": WrongLoop(Loop(rate=lambda training, t: training.rate(t) / 2.0), "rate-other", True),
}


CORRECT: Mapping[str, Loop] = {
    "torch's AdamW": Loop(),
    "foreach": Loop(lambda groups, training: _adamw(groups, training, foreach=True)),
    "fused": Loop(lambda groups, training: _adamw(groups, training, fused=True)),
    "by hand, with and without correction": Loop(ByHand),
    "clipped as in TensorFlow": Loop(clip=_clip_after_tensorflow),
    "accumulated over micro-batches": Loop(backward=_by_micro_batches),
}
