"""The training step of the tutorial's loop, with its mistakes corrected."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from conformance import TorchBatch, Training, Unsupported

from .curves import Scores
from .network import BERTLM, IGNORED, pretraining_loss


class Trainer:
    """Adam with decoupled weight decay of matrices only, clipping by the global norm, and the tutorial's schedule.

    The learning rate rises linearly to the value in the settings and then falls as 1/√step (Vaswani et al. 2017, section 5.3).
    """

    def __init__(self, model: BERTLM, training: Training) -> None:
        self.model, self.training = model, training
        self.steps = 0
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_epsilon,
        )

    def step(self, batch: TorchBatch) -> Scores:
        """Perform one training step, and return the scores before the update, with dropout."""
        self.model.train()
        loss, scores = self._forward(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.training.max_grad_norm)
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.steps += 1
        return scores

    def evaluated(self, batch: TorchBatch) -> Scores:
        """Return the scores without dropout, without an update."""
        self.model.eval()
        with torch.no_grad():
            return self._forward(batch)[1]

    def rate(self) -> float:
        """Return the learning rate of the next step; 0 in the first step."""
        warm, done = self.training.warmup_steps, self.steps
        return self.training.learning_rate * min(done / warm, math.sqrt(warm / max(done, 1)))

    def _forward(self, batch: TorchBatch) -> tuple[Tensor, Scores]:
        """Return the sum of the losses, and the scores."""
        given = batch.filled()
        pairs, tokens = self.model(given.input_ids, given.token_type_ids, given.attention_mask)
        masked, following = losses_of(pairs, tokens, batch)
        counts = (*_correct(tokens, batch.labels), *_correct(pairs, batch.next_sentence_label))
        return masked + following, Scores(masked.item(), following.item(), *counts)


def losses_of(pairs: Tensor, tokens: Tensor, batch: TorchBatch, ignored_pairs: int = IGNORED) -> tuple[Tensor, Tensor]:
    """Return masked-LM and next-sentence loss of a batch with both labels: (B, 2), (B, S, V) log-probabilities -> scalars."""
    assert batch.labels is not None
    assert batch.next_sentence_label is not None
    return pretraining_loss(tokens, batch.labels), pretraining_loss(pairs, batch.next_sentence_label, ignored_pairs)


def train(model: BERTLM, training: Training) -> Callable[[TorchBatch], object]:
    """Return a function that performs one training step on a batch with these settings."""
    if training.lr_scheduler_type != "inverse_sqrt" or not training.bias_correction:
        raise Unsupported("the tutorial's rate falls as 1/√step, and its Adam corrects its moments")
    return Trainer(model, training).step


def _correct(log_probs: Tensor, labels: Tensor | None) -> tuple[int, int]:
    assert labels is not None
    labelled = labels != IGNORED
    return int(((log_probs.argmax(-1) == labels) & labelled).sum()), int(labelled.sum())
