"""Whether a training loop learns: after some steps the masked-LM loss lies below the entropy of the tokens' frequencies.

Each of R rows repeats one token, drawn uniformly of the n that there are, and as many places of each hold the mask token: what
they hid can be read off the rest of the row, and frequencies alone say nothing. A network that has not learnt this has
probabilities p_i at the places i that do not depend on which of the n tokens a row repeats, so that E n p_i ≤ 1, and, with the
mean over the places of a row inside of the exponential (Jensen), E exp Σ_rows mean (ln n + ln p_i) ≤ 1. By Markov's inequality

    P(R (ln n − loss) ≥ ln 1/α) ≤ α

with the loss the mean over all hidden places. So α bounds the probability that what has learnt nothing passes. That a
correct loop falls below the bound in so many steps is not derived but measured, on the goldens that are named here
(`test_learning.py`); in `deep` it does not, so the check does not apply there, nor to networks of users.
"""

import math
from functools import partial

import numpy as np

from conformance.candidates.arrays import described
from conformance.candidates.registry import Runner
from conformance.checks.check import CheckRequest
from conformance.checks.optimizer import with_each
from conformance.checks.passes import yielded
from conformance.checks.session import ability
from conformance.checks.training import random_numbers_from
from conformance.errors import NotApplicable
from conformance.goldens.golden import Golden
from conformance.judge.statistics import share
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, Batch
from conformance.model.training import Training
from conformance.results.result import Result, Searched
from conformance.results.termination import Termination, call_candidate, run_guarded

LOSS = "cls.predictions.loss"
STEPS = 150  # hf-eager on `tiny` needs a fifth of them (`test_learning.py`)
MEASURED = ("tiny", "edges", "tanh", "sinusoidal", "decoder")  # goldens on which correct loops have been seen to learn
ROWS, LENGTH, HIDDEN = 32, 12, 4  # of a batch, and the places of a row that are hidden

EVALUATED = 8  # batches, of 256 rows together: ln(1/α)/R is 0.054 for α = 1e-6

# Of each way in which the rate may go on after the warm-up.
SETTINGS = {
    kind: Training(learning_rate=1e-3, warmup_steps=10, max_steps=2 * STEPS, lr_scheduler_type=kind)
    for kind in ("linear", "inverse_sqrt")
}


def learning(request: CheckRequest) -> Result:
    """Train and evaluate; nothing is raised."""
    case, steps = request.case, 0

    def judged() -> Termination:
        nonlocal steps
        _require_fit(request.golden, case.dtype)
        loss, tokens = _loss_after_training(request)
        steps, alpha = STEPS, share(request.runs)
        bound = math.log(tokens) - math.log(1.0 / alpha) / (EVALUATED * ROWS)
        if loss <= bound:
            return Termination("pass")
        reason = f"after {STEPS} steps the masked-LM loss is {loss:.3f}; frequencies alone give {math.log(tokens):.3f}"
        return Termination("fail", f"{reason}, and what has learnt anything at most {bound:.3f}", 1)

    termination = run_guarded(judged)
    return termination.result(case, executed=steps > 0 and termination.is_judged, searched=Searched(steps))


def _require_fit(golden: Golden, dtype: str) -> None:
    """Raise `NotApplicable` where learning is not asked for."""
    if golden.name not in MEASURED:
        raise NotApplicable(f"it is asked on {', '.join(MEASURED)}, where correct loops have been seen to learn in {STEPS} steps")
    if dtype in ("bfloat16", "float16"):
        raise NotApplicable(f"in {dtype} steps are lost in the rounding of the parameters, without a copy of them in float32")


def _loss_after_training(request: CheckRequest) -> tuple[float, int]:
    """The masked-LM loss on examples that were not trained on, and how many tokens there are to choose from."""
    case, a = request.case, request.golden.checkpoint.architecture
    rng = np.random.default_rng(0)

    def run(runner: Runner, training: Training) -> float:
        _train(runner, training, a, rng, case.device)
        return sum(_loss(runner, _examples(a, rng), case.device) for _ in range(EVALUATED)) / EVALUATED

    _, loss = next(with_each(request.candidate, request.golden, case, SETTINGS, run))
    return loss, _tokens(a)


def _train(runner: Runner, training: Training, a: Architecture, rng: np.random.Generator, device: str) -> None:
    """Do the steps; `Unsupported` where the candidate has no such settings."""
    trainer = ability(runner, "trainer")
    step = call_candidate(lambda: trainer(training), may_refuse=True)
    with random_numbers_from(0):
        for _ in range(STEPS):
            batch = _examples(a, rng).on(device)
            for _ in yielded(partial(step, batch)):
                pass  # parameters and gradients, which `optimizer-step` judges


def _loss(runner: Runner, batch: Batch, device: str) -> float:
    """That of a batch, in the mode for evaluation."""
    found = dict(yielded(lambda: runner(batch.on(device))))
    if LOSS not in found:
        raise NotApplicable(f"it does not expose {LOSS}")
    return float(described(found[LOSS]).read())


def _tokens(a: Architecture) -> int:
    """All but the first, which may be padding, and the last, which stands for what is hidden."""
    return a.vocab_size - 2


def _examples(a: Architecture, rng: np.random.Generator) -> Batch:
    """Rows of one token each, with the same number of places hidden."""
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
