"""A test of whether a training loop learns: the masked-LM loss must fall below the entropy of the tokens' frequencies.

Each of R rows repeats one token, drawn uniformly from n tokens, and the same number of positions in each row holds the mask token.
The hidden tokens can be read off the rest of the row, while frequencies alone carry no information. In a network that has not
learnt this, the probabilities p_i of the correct tokens at the hidden positions i do not depend on which of the n tokens a row
repeats, so that E n p_i ≤ 1 and, by Jensen's inequality with the mean over the positions of a row inside the exponential, E exp
Σ_rows mean (ln n + ln p_i) ≤ 1. By Markov's inequality

    P(R (ln n − loss) ≥ ln 1/α) ≤ α

where the loss is the mean over all hidden positions. Hence a network that has learnt nothing passes with probability at most α.
That a correct loop falls below the bound within the given number of steps is not derived but measured, on the goldens named here
(`test_learning.py`). On `deep` a correct loop does not, so the check does not apply there, nor to custom networks.
"""

import math
from functools import partial

import numpy as np

from conformance.candidates.arrays import described
from conformance.candidates.registry import Runner
from conformance.checks.check import CheckRequest
from conformance.checks.contract import ability, yielded
from conformance.checks.counted import Tried, counted
from conformance.checks.optimizer_passes import with_each
from conformance.checks.training_passes import random_numbers_from
from conformance.errors import NotApplicable
from conformance.goldens.golden import Golden
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, Batch
from conformance.model.training import Training
from conformance.numerics.thresholds import sidak_share
from conformance.results.result import Result
from conformance.results.termination import call_candidate

LOSS = "cls.predictions.loss"
STEPS = 150  # hf-eager on `tiny` needs a fifth of them (`test_learning.py`)
MEASURED = ("tiny", "edges", "tanh", "sinusoidal", "decoder")  # goldens on which correct loops learn, as measured
ROWS, LENGTH, HIDDEN = 32, 12, 4  # rows of a batch, positions of a row, and hidden positions of a row

EVALUATED = 8  # number of batches, with 256 rows in total: ln(1/α)/R is 0.054 for α = 1e-6

# Two settings, one for each shape of the learning rate after the warm-up; a candidate needs to support one of them.
SETTINGS = {
    kind: Training(learning_rate=1e-3, warmup_steps=10, max_steps=2 * STEPS, lr_scheduler_type=kind)
    for kind in ("linear", "inverse_sqrt")
}


def learning(request: CheckRequest) -> Result:
    """Train, evaluate and return the result; no exception is raised."""

    def wrong(tried: Tried) -> str:
        _require_fit(request.golden, request.case.dtype)
        loss, tokens = _loss_after_training(request)
        tried.count = STEPS
        bound = math.log(tokens) - math.log(1.0 / sidak_share(request.runs)) / (EVALUATED * ROWS)
        if loss <= bound:
            return ""
        reason = f"after {STEPS} steps the masked-LM loss is {loss:.3f}; frequencies alone give {math.log(tokens):.3f}"
        return f"{reason}, and a loop that learns reaches at most {bound:.3f}"

    return counted(request.case, wrong)


def _require_fit(golden: Golden, dtype: str) -> None:
    """Raise `NotApplicable` for goldens and formats in which learning is not tested."""
    if golden.name not in MEASURED:
        raise NotApplicable(f"it is asked on {', '.join(MEASURED)}, where correct loops have been seen to learn in {STEPS} steps")
    if dtype in ("bfloat16", "float16"):
        raise NotApplicable(f"in {dtype} steps are lost in the rounding of the parameters, without a copy of them in float32")


def _loss_after_training(request: CheckRequest) -> tuple[float, int]:
    """Return the masked-LM loss on examples not used in training, and the number n of tokens."""
    case, a = request.case, request.golden.checkpoint.architecture
    rng = np.random.default_rng(0)

    def run(runner: Runner, training: Training) -> float:
        _train(runner, training, a, rng, case.device)
        return sum(_loss(runner, _examples(a, rng), case.device) for _ in range(EVALUATED)) / EVALUATED

    _, loss = next(with_each(request.candidate, request.golden, case, SETTINGS, run))
    return loss, _tokens(a)


def _train(runner: Runner, training: Training, a: Architecture, rng: np.random.Generator, device: str) -> None:
    """Run the training steps; raise `Unsupported` if the candidate does not support the settings."""
    trainer = ability(runner, "trainer")
    step = call_candidate(lambda: trainer(training), may_refuse=True)
    with random_numbers_from(0):
        for _ in range(STEPS):
            batch = _examples(a, rng).on(device)
            for _ in yielded(partial(step, batch)):
                pass  # `optimizer-step` judges the parameters and gradients


def _loss(runner: Runner, batch: Batch, device: str) -> float:
    """Return the masked-LM loss of a batch in evaluation mode; raise `NotApplicable` if the candidate does not expose it."""
    found = dict(yielded(lambda: runner(batch.on(device))))
    if LOSS not in found:
        raise NotApplicable(f"it does not expose {LOSS}")
    return float(described(found[LOSS]).read())


def _tokens(a: Architecture) -> int:
    """Return the number of tokens except the first, which may be padding, and the last, which serves as the mask token."""
    return a.vocab_size - 2


def _examples(a: Architecture, rng: np.random.Generator) -> Batch:
    """Return a batch in which each row repeats one token, with the same number of hidden positions in every row."""
    tokens = np.repeat(1 + rng.integers(0, _tokens(a), (ROWS, 1)), min(LENGTH, a.longest), 1)
    hidden = rng.random(tokens.shape).argsort(1) < HIDDEN
    types = np.full_like(tokens, min(1, a.type_vocab_size - 1))
    return Batch(
        np.where(hidden, a.vocab_size - 1, tokens),
        types,
        np.ones_like(tokens),
        labels=np.where(hidden, tokens, IGNORED_LABEL),
        next_sentence_label=np.zeros(ROWS, np.int64),
    )
