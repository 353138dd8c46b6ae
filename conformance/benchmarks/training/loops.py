"""Training loops of `making-bert`: correct ones, and mistakes, many of which are the text of an expression."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance import TorchBatch, TorchImplementation, Training, Unsupported
from conformance.benchmarks.detection.tools import evaluated
from conformance.implementations.making_bert import Bert, making_bert

Parameters = Iterable[nn.Parameter]
Optimizer = Callable[[Any, Training], torch.optim.Optimizer]


def _of_torch(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Optimizer:
    def optimizer(groups: Any, training: Training) -> torch.optim.Optimizer:
        if not training.bias_correction:
            raise Unsupported("torch's Adam corrects its moments")
        betas = (training.adam_beta1, training.adam_beta2)
        return kind(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, **options)

    return optimizer


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1


def _clip(parameters: Parameters, c: float) -> None:
    nn.utils.clip_grad_norm_(list(parameters), c)


def _backward(model: Bert, batch: TorchBatch) -> None:
    torch.autograd.backward(loss(model, batch))


def loss(model: Bert, batch: TorchBatch, **options: Any) -> Tensor:
    """Return the masked-LM loss."""
    assert batch.labels is not None
    assert batch.token_type_ids is not None
    logits = model(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100, **options)


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

    optimizer: Optimizer = _of_torch(torch.optim.AdamW)  # noqa: RUF009  # A function.
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

    Its two expressions refer to the parameter `p`, the moments `m` and `v`, their corrections `c1` and `c2` (1 − βᵗ, or 1), `eps`,
    the learning rate `eta` and the weight decay `lam`.
    """

    UPDATE, DECAY = "m / c1 / ((v / c2).sqrt() + eps)", "p * (1 - eta * lam)"

    def __init__(self, groups: Any, training: Training, update: str = UPDATE, decay: str = DECAY) -> None:
        """Create the optimizer.

        Args:
            groups: groups of parameters.
            training: the settings.
            update: the amount to subtract, divided by η.
            decay: the decayed parameter.
        """
        super().__init__(groups, {"lr": training.learning_rate})
        self.training, self.update, self.decay = training, update, decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Ignores the closure.
        """Update all parameters that have a gradient."""
        settings, b1, b2 = self.training, self.training.adam_beta1, self.training.adam_beta2
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m, v, t = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p)), state.get("t", 0) + 1
                m, v = b1 * m + (1.0 - b1) * p.grad, b2 * v + (1.0 - b2) * p.grad * p.grad
                self.state[p] = {"m": m, "v": v, "t": t}
                c1, c2 = (1.0 - b1**t, 1.0 - b2**t) if settings.bias_correction else (1.0, 1.0)
                names = {"p": p, "m": m, "v": v, "c1": c1, "c2": c2, "eps": settings.adam_epsilon}
                names |= {"eta": group["lr"], "lam": group["weight_decay"]}
                decayed, update = (evaluated(text, names.__getitem__) for text in (self.decay, self.update))
                p.copy_(decayed - group["lr"] * update)


def _by_hand(update: str = ByHand.UPDATE, decay: str = ByHand.DECAY, **settings: Any) -> Loop:
    return Loop(lambda groups, training: ByHand(groups, replace(training, **settings), update, decay))


def _clip_each(parameters: Parameters, c: float) -> None:
    for parameter in parameters:
        nn.utils.clip_grad_norm_([parameter], c)


def _clip_by_value(parameters: Parameters, c: float) -> None:
    nn.utils.clip_grad_value_(list(parameters), c)


def _clip_after_tensorflow(parameters: Parameters, c: float) -> None:
    """Scale gradients to g c / max(‖g‖, c), as tf.clip_by_global_norm does."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    for g in gradients:
        g.mul_(c / torch.clamp(norm, min=c))


def _accumulated(weight: str) -> Loop:
    """Return a loop that accumulates gradients over micro-batches of one row; rows without labels are left out.

    The weight of a micro-batch is an expression of its number of labelled tokens `n`, of their sum `total`, and of the number of
    micro-batches `rows`.
    """

    def backward(model: Bert, batch: TorchBatch) -> None:
        whole, device = batch.numpy(), str(batch.input_ids.device)
        rows = [whole.cut(slice(i, i + 1)).on(device) for i in range(whole.size)]
        counted = [(row, int((row.labels != -100).sum())) for row in rows if row.labels is not None]
        labelled = [(row, n) for row, n in counted if n]
        names = {"total": sum(n for _, n in labelled), "rows": len(labelled)}
        for row, n in labelled:
            torch.autograd.backward(loss(model, row) * evaluated(weight, {**names, "n": n}.__getitem__))

    return Loop(backward=backward)


def _smoothed(model: Bert, batch: TorchBatch) -> None:
    torch.autograd.backward(loss(model, batch, label_smoothing=0.1))


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
    "divided twice by the number of micro-batches": WrongGradient(_accumulated("n / total / rows"), _TIMES),
    "averaged over all positions": WrongGradient(Loop(backward=_over_all_positions), _TIMES),
    # huggingface/blog#2414: micro-batches with different numbers of labelled tokens.
    "a mean of the micro-batches' means": WrongGradient(_accumulated("1 / rows"), _NOT),
    "label smoothing": WrongGradient(Loop(backward=_smoothed), _NOT),
    "no mask": WrongGradient(Loop(backward=_without_mask), _NOT),
}


@dataclass(frozen=True)
class WrongLoop:
    """A mistake in a training loop.

    Attributes:
        loop: the loop.
        named: name of the fault that explains most failures.
        by_schedule: whether the check `schedule` must detect it, instead of `optimizer-step`.
    """

    loop: Loop
    named: str
    by_schedule: bool = False


def _rate(expression: str, named: str) -> WrongLoop:
    """Return a mistake in the schedule: the rate as an expression of the settings `s`, and of the step `t`."""
    return WrongLoop(Loop(rate=lambda s, t: float(evaluated(expression, {"s": s, "t": t}.__getitem__))), named, by_schedule=True)


WRONG: Mapping[str, WrongLoop] = {
    "epsilon in the root": WrongLoop(_by_hand("m / c1 / (v / c2 + eps).sqrt()"), "adam-epsilon-in-root"),
    "epsilon before the correction": WrongLoop(_by_hand("c2**0.5 / c1 * m / (v.sqrt() + eps)"), "adam-epsilon-before-correction"),
    "bias correction missing": WrongLoop(_by_hand(bias_correction=False), "adam-correction-missing"),
    "bias corrected for BERT's own Adam": WrongLoop(_by_hand(bias_correction=True), "adam-corrected"),
    "decay in the gradient": WrongLoop(Loop(_of_torch(torch.optim.Adam)), "decay-coupled"),
    "no decay": WrongLoop(Loop(decayed=lambda *_: False), "decay-missing"),
    "decay on biases and norms": WrongLoop(Loop(decayed=lambda *_: True), "decay-on-all"),
    "decay not scaled": WrongLoop(_by_hand(decay="p * (1 - lam)"), "decay-not-scaled"),
    "no clipping": WrongLoop(Loop(clip=lambda *_: None), "clip-missing"),
    "clipped tensor by tensor": WrongLoop(Loop(clip=_clip_each), "clip-by-parameter"),
    "clipped by value": WrongLoop(Loop(clip=_clip_by_value), "clip-by-value"),
    "a parameter that is not trained": WrongLoop(Loop(trained=lambda name: "mlp2.bias" not in name), "parameter-not-updated"),
    "torch's epsilon": WrongLoop(_by_hand(adam_epsilon=1e-8), "adam-epsilon"),
    "another beta1": WrongLoop(_by_hand(adam_beta1=0.8), "adam-beta1"),
    "another beta2": WrongLoop(_by_hand(adam_beta2=0.98), "adam-beta2"),
    "a tenth of the decay": WrongLoop(_by_hand(decay="p * (1 - 0.1 * eta * lam)"), "decay-other"),
    "warm-up one step ahead": _rate("s.rate(t + 1)", "rate-one-step-ahead"),
    "warm-up one step behind": _rate("s.rate(max(t - 1, 1))", "rate-one-step-behind"),
    "no schedule": _rate("s.learning_rate", "rate-constant"),
    "no warm-up": _rate("s.learning_rate * (1 - (t - 1) / s.max_steps)", "warmup-missing"),
    "half the rate": _rate("s.rate(t) / 2", "rate-other"),
}


CORRECT: Mapping[str, Loop] = {
    "torch's AdamW": Loop(),
    "foreach": Loop(_of_torch(torch.optim.AdamW, foreach=True)),
    "fused": Loop(_of_torch(torch.optim.AdamW, fused=True)),
    "by hand, with and without correction": Loop(ByHand),
    "clipped as in TensorFlow": Loop(clip=_clip_after_tensorflow),
    "accumulated over micro-batches": _accumulated("n / total"),
}
