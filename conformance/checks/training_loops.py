"""Checks of whole training loops: the loss after each of a hundred steps, and whether a loop learns."""

import math
from functools import partial

import numpy as np

from conformance.candidates.arrays import described
from conformance.candidates.registry import Runner
from conformance.checks.candidate_device import functions_of
from conformance.checks.check import Count, CountingCheck, Request
from conformance.checks.contract import ability, yielded
from conformance.checks.optimizer_passes import missing_gradients, runs_of, trained_loss, with_each
from conformance.checks.training_passes import HeldStream, random_numbers_from, values_of
from conformance.errors import CandidateError, NotApplicable
from conformance.goldens.golden import Golden
from conformance.goldens.manifest import DEFAULT_GOLDENS
from conformance.judge.cache import expected_losses
from conformance.judge.loss_curve import Expected, TrainedLoss, threshold
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, Batch
from conformance.model.training import FOLLOWED, Training, at
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import sidak_share
from conformance.oracle import Network
from conformance.oracle.training_run import TrainingRun, VectorLayout
from conformance.results.termination import call_candidate

FOLLOWED_STEPS = 100


@CountingCheck.of(
    "loss-curve",
    proves="over a hundred steps the loss of the training loop agrees with the oracle's to within rounding",
    catches="an Adam state that is lost between steps; a learning rate that is off by 1 %; a wrong batch",
    remedy="Run `optimizer-step` and `schedule`, which name most causes; otherwise inspect the loop at the reported step.",
)
def loss_curve(request: Request, count: Count) -> str:
    """All steps use one batch, without dropout.

    After each step the loss is computed in float64 at the candidate's current parameters and compared with the loss of the oracle's
    own loop, which starts from the same parameters and computes its own gradients. An error in any step therefore persists in all
    later ones. The distance that rounding causes between the two is sampled (`conformance.judge.loss_curve`).

    This is the accumulated judgement of a loop. The local ones are `optimizer-step` and `schedule`: they judge each step from the
    candidate's own gradients, over fewer steps, and name the mistakes. Like these, it does not notice a loop that does not call
    `model.train()`.
    """
    if request.golden.name not in DEFAULT_GOLDENS:
        names = " and ".join(DEFAULT_GOLDENS)
        raise NotApplicable(f"it is asked on {names}: elsewhere the oracle's hundred steps take too long")
    label, (run, stream) = next(runs_of(request, FOLLOWED, FOLLOWED_STEPS))
    count.tried = FOLLOWED_STEPS
    return _compared(label, run, stream, request)


def _compared(label: str, run: TrainingRun, stream: HeldStream, request: Request) -> str:
    """Compare the losses step by step; return a sentence on the first that exceeds its limit, or an empty text."""
    case, source = request.case, trained_loss(run)
    if not source:
        raise NotApplicable("no bias of a head is trained, so that it is not known of which loss the gradients are")
    network, shapes = Network(run.architecture, run.weights, run.batch, source=source), parameter_shapes(run.architecture)
    layout = VectorLayout({name: shapes[name] for name in (*run.gradients[0], *missing_gradients(run, network))})
    loss = TrainedLoss(network, layout)
    parameters = _vectors(stream, layout)
    limit = threshold(sidak_share(FOLLOWED_STEPS * request.runs))
    functions, checkpoint = functions_of(request.candidate, case.device), request.golden.checkpoint
    oracle = expected_losses(loss, parameters[0], run.training, case.dtype, case.device, functions, checkpoint)
    for step, (right, vector) in enumerate(zip(oracle, parameters[1:], strict=True), 1):
        found = loss.value(vector) if np.isfinite(vector).all() else np.nan
        if not right.deviation(found) <= limit:
            return f"{label}: {_difference(step, source, found, right, limit)}"
    return ""


def _difference(step: int, source: str, found: float, right: Expected, limit: float) -> str:
    """Return a sentence that describes the deviation after a step."""
    if not np.isfinite(found):
        return f"after step {step} {source}, or a parameter, is not finite"
    return (
        f"after step {step} {source} is {found:.7g}, expected {right.loss:.7g}: the difference is "
        f"{right.deviation(found):.3g} times what rounding explains ({right.spread:.2g}), where at most {limit:.1f} times is right"
    )


def _vectors(stream: HeldStream, layout: VectorLayout) -> list[Array]:
    """Return the parameters before the first step and after each step; raise `CandidateError` if one is missing."""
    arrays, found = dict(stream), []
    for step in range(FOLLOWED_STEPS + 1):
        values = {name: values_of(arrays.get(at(step, name)), shape) for name, shape in layout.shapes.items()}
        missing = next((name for name, value in values.items() if value is None), None)
        if missing is not None:
            raise CandidateError(f"step {step} of training yields no {missing} of shape {layout.shapes[missing]}, and its gradient")
        found.append(layout.vector({name: value for name, value in values.items() if value is not None}))
    return found


LOSS = "cls.predictions.loss"
STEPS = 150  # hf-eager on `tiny` needs a fifth of them
MEASURED = ("tiny", "edges", "tanh", "sinusoidal", "decoder")  # goldens on which correct loops learn, as measured
ROWS, LENGTH, HIDDEN = 32, 12, 4  # rows of a batch, positions of a row, and hidden positions of a row

EVALUATED = 8  # number of batches, with 256 rows in total: ln(1/α)/R is 0.054 for α = 1e-6

# Two settings, one for each shape of the learning rate after the warm-up; a candidate needs to support one of them.
SETTINGS = {
    kind: Training(learning_rate=1e-3, warmup_steps=10, max_steps=2 * STEPS, lr_scheduler_type=kind)
    for kind in ("linear", "inverse_sqrt")
}


@CountingCheck.of(
    "learning",
    proves="a training loop learns: the masked-LM loss falls below the entropy of the tokens' frequencies",
    catches="labels that belong to other positions; an optimizer that changes no parameter, or increases the loss",
    remedy="Run `gradients` and `optimizer-step`, which find most causes; then inspect how the loop treats its batches.",
)
def learning(request: Request, count: Count) -> str:
    """Each of R rows repeats one token, drawn uniformly from n tokens, and some positions in each row hold the mask token.

    The hidden tokens can be read off the rest of the row, while frequencies alone carry no information. In a network that has not
    learnt this, the probabilities p_i of the correct tokens at the hidden positions i do not depend on which of the n tokens a row
    repeats, so that E n p_i ≤ 1 and, by Jensen's inequality with the mean over the positions of a row inside the exponential, E exp
    Σ_rows mean (ln n + ln p_i) ≤ 1. By Markov's inequality

        P(R (ln n − loss) ≥ ln 1/α) ≤ α

    where the loss is the mean over all hidden positions. Hence a network that has learnt nothing passes with probability at most α.
    That a correct loop falls below the bound within the given number of steps is not derived but measured, on the goldens named
    here (`test_loss_curve.py`). On `deep` a correct loop does not, so the check does not apply there, nor to custom networks.
    """
    _require_fit(request.golden, request.case.dtype)
    loss, tokens = _loss_after_training(request)
    count.tried = STEPS
    bound = math.log(tokens) - math.log(1.0 / sidak_share(request.runs)) / (EVALUATED * ROWS)
    if loss <= bound:
        return ""
    reason = f"after {STEPS} steps the masked-LM loss is {loss:.3f}; frequencies alone give {math.log(tokens):.3f}"
    return f"{reason}, and a loop that learns reaches at most {bound:.3f}"


def _require_fit(golden: Golden, dtype: str) -> None:
    """Raise `NotApplicable` for goldens and formats in which learning is not tested."""
    if golden.name not in MEASURED:
        raise NotApplicable(f"it is asked on {', '.join(MEASURED)}, where correct loops have been seen to learn in {STEPS} steps")
    if dtype in ("bfloat16", "float16"):
        raise NotApplicable(f"in {dtype} steps are lost in the rounding of the parameters, without a copy of them in float32")


def _loss_after_training(request: Request) -> tuple[float, int]:
    """Return the masked-LM loss on examples not used in training, and the number n of tokens."""
    case, a = request.case, request.golden.checkpoint.architecture
    rng = np.random.default_rng(0)

    def run(runner: Runner, training: Training) -> float:
        _train(runner, training, a, rng, case.device)
        return sum(_loss(runner, _examples(a, rng), case.device) for _ in range(EVALUATED)) / EVALUATED

    _, loss = next(with_each(request, SETTINGS, run))
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
