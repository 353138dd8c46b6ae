"""The steps of a training loop, each judged from its gradients and the parameters before it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from conformance.candidates.arrays import Described, held_in
from conformance.candidates.registry import Runner
from conformance.checks.check import Request
from conformance.checks.contract import ability, yielded
from conformance.checks.judgement import Judgement
from conformance.checks.passes import Pass, opened
from conformance.checks.training_passes import RATES, HeldStream, random_numbers_from, read, values_of
from conformance.errors import CandidateError, NotApplicable, Unsupported
from conformance.goldens.golden import Golden, with_config
from conformance.judge.judge import Judge
from conformance.model.activations import parameter_shapes, table
from conformance.model.checkpoint import rounded_weights
from conformance.model.gradients import SUFFIX, grad, is_gradient
from conformance.model.training import SCHEDULED, STEPPED, STEPS, WHOLE, Training, at, parameter_of
from conformance.numerics.formats import Array
from conformance.numerics.machine import this_machine
from conformance.oracle import Network
from conformance.oracle.training_run import KeptSteps, TrainingRun
from conformance.results.case import Case
from conformance.results.termination import call_candidate

T = TypeVar("T")
# The step whose gradients are judged: the first one after a change of the parameters, since the first learning rate is 0.
STEP = 3

# A parameter that has a gradient if the loss of its head is trained, and that loss.
_HEADS = {
    "cls.predictions.bias": "cls.predictions.loss",
    "cls.seq_relationship.bias": "cls.seq_relationship.loss",
    "classifier.bias": "classifier.loss",
    "qa_outputs.bias": "qa_outputs.loss",
}
_NO_GRADIENT = (
    "{names} no gradient, though {loss} depends on {them}: {it} {is_} not trained; `frozen` of a TorchImplementation declares what "
    "is not meant to be"
)
_OTHER = "not the gradient of {loss} at the parameters before the step; `gradients` and `training-mode` judge the network's own"


@Judgement.of(
    "optimizer-step",
    proves="each step of the training loop updates the parameters as clipping, AdamW and the schedule require",
    catches="epsilon inside the square root; weight decay on biases, or in the gradient; clipping per tensor",
    remedy="Take the first origin and the mistake named there: a wrong setting, or a wrong term of Adam's equation.",
)
def optimizer_step(request: Request) -> Sequence[Pass]:
    """Each step of the optimizer is judged from its gradients and the parameters before it.

    The function passed as `TorchImplementation(train=…)` takes the module and a `conformance.Training` (settings with the names of
    transformers' `TrainingArguments`). It returns a function of a batch that performs one step: forward and backward pass,
    clipping, the optimizer's step and the schedule's step. The expected step clips by the global norm; applies AdamW (Loshchilov
    and Hutter 2019) or BERT's own Adam without bias correction; and uses transformers' linear or inverse-square-root schedule or
    BERT's own. The gradients of one step are judged from the parameters before it. This finds a missing `zero_grad()`, a loss that
    is scaled wrongly when gradients are accumulated, and parameters that are not trained although the loss depends on them.

    A gradient is read after the last backward pass, and again before a call of `torch.nn.utils.clip_grad_norm_` or after
    `GradScaler.unscale_`. A loop that rescales its gradients in another way, or assigns them to `.grad`, must clip by calling
    `torch.nn.utils.clip_grad_norm_` under this name; otherwise its gradients are read before they are rescaled, or not at all.

    The dropout rates are set to 0, so that each step is repeatable. A loop that does not call `model.train()` computes the same
    values and passes; the module is passed to it in evaluation mode.
    """
    runs = list(runs_of(request, STEPPED, STEPS))
    label, (network, stream) = runs[0]
    return [*gradient_passes(label, network, stream, request.case), *(_pass(label, *run) for label, run in runs)]


@Judgement.of(
    "schedule",
    proves="the learning rate follows the schedule's formula in every step of a whole run",
    catches="a warm-up that is off by one step; a schedule that is stepped once per epoch",
    remedy="Step the schedule once after each step of the optimizer; `explain rate-other` lists the usual mistakes.",
)
def schedule(request: Request) -> Sequence[Pass]:
    """A whole run with each schedule is judged like the steps of `optimizer-step`, by the largest parameter alone.

    Like that check, it sets the dropout rates to 0 and does not notice a loop that does not call `model.train()`.
    """
    passes = []
    for label, (network, stream) in runs_of(request, SCHEDULED, WHOLE):
        first = network.gradients[0]
        largest = max(first, key=lambda name: first[name].size)
        seen = [pair for pair in stream if is_gradient(pair[0]) or parameter_of(pair[0]) == largest]
        passes.append(_pass(label, replace(network, judged=(largest,)), seen))
    return passes


def _pass(label: str, network: TrainingRun, stream: HeldStream) -> Pass:
    return Pass(label, "", network, partial(iter, [pair for pair in stream if parameter_of(pair[0]) not in network.untrained]))


def runs_of(request: Request, settings: Mapping[str, Training], steps: int) -> Iterator[tuple[str, tuple[TrainingRun, HeldStream]]]:
    """Yield the label and the run of each of the settings that the candidate supports.

    Raises:
        NotApplicable: if the runner has no training loop or supports none of the settings, if the network has no loss, or if the
            format is float16, in which Adam's second moments underflow.
        Unsupported, CandidateFailure: as raised by `opened` and the steps.
    """
    golden, case = request.golden, request.case
    if case.dtype == "float16":
        raise NotApplicable("in float16 the second moments of Adam underflow")
    if not any(name.endswith(".loss") for name in table(golden.checkpoint.architecture)):
        raise NotApplicable(f"{golden.name} has no head with a loss, from which a step could be computed")
    yield from with_each(request, settings, partial(_run, golden, case, steps))


def with_each(request: Request, settings: Mapping[str, Training], run: Callable[[Runner, Training], T]) -> Iterator[tuple[str, T]]:
    """Yield the label of each of the settings and the value of `run` for it, each with a new runner and without dropout.

    Settings for which `run` raises `Unsupported` are omitted.

    Raises:
        NotApplicable: if all settings are omitted.
        Unsupported, CandidateFailure: as raised by `opened`.
    """
    still, refusals = request.on(with_config(request.golden, **dict.fromkeys(RATES, 0.0))), []  # dropout makes losses unrepeatable
    for label, training in settings.items():
        runner = opened(still)
        try:
            yield label, run(runner, training)
        except Unsupported as why:
            refusals.append(str(why))
    if len(refusals) == len(settings):
        raise NotApplicable("; ".join(dict.fromkeys(refusals)))


def _run(golden: Golden, case: Case, steps: int, runner: Runner, training: Training) -> tuple[TrainingRun, HeldStream]:
    """Run the steps, all on the first batch; raise `Unsupported` if the candidate does not support the settings."""
    trainer = ability(runner, "trainer")
    architecture, weights = golden.checkpoint.architecture, rounded_weights(golden.checkpoint, case.dtype)
    batch, shapes = next(iter(golden.batches.values())), parameter_shapes(architecture)
    gradients: list[Mapping[str, Array]] = []
    stream: HeldStream = []
    with random_numbers_from(0):
        step = call_candidate(lambda: trainer(training), may_refuse=True)
        for t in range(1, steps + 1):
            found = [(name, read(value)) for name, value in yielded(lambda: step(batch.on(case.device)))]
            gradients.append(_gradients(found, shapes))
            stream += [(at(t, name), value) for name, value in found if name.removesuffix(SUFFIX) in shapes]
    if len({frozenset(each) for each in gradients}) > 1 or not gradients[0]:
        raise CandidateError("a step of training yields NAME.grad for the same parameters each time, and for one at least")
    untrained = tuple(dict.fromkeys(name for name, _ in found if name in shapes and name not in gradients[0]))
    initial = [(at(0, name), held_in(case.dtype, weights[name])) for name in (*gradients[0], *untrained)]
    run = TrainingRun(architecture, weights, batch, training=training, gradients=tuple(gradients), untrained=untrained)
    return run, [*initial, *stream]


def _gradients(found: HeldStream, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return the gradients by parameter name; raise `CandidateError` for an unknown name or a wrong shape.

    The checkpoint may lack parameters that the candidate does not train, unless a trained one is missing under its name.
    """
    gradients, unknown = {}, list[Any]()
    for name, value in found:
        of = name.removesuffix(SUFFIX) if isinstance(name, str) else ""
        if of not in shapes:
            unknown.append(name)
        elif name != of:
            if not isinstance(value, Described) or value.shape != shapes[of]:
                raise CandidateError(f"{name} is no array of shape {shapes[of]}")
            gradients[of] = np.asarray(value.read(), np.float64)
    is_complete = gradients and all(isinstance(name, str) and not name.endswith(SUFFIX) for name in unknown)
    if unknown and not (is_complete and gradients.keys() <= {name for name, _ in found}):
        raise CandidateError(f"a step of training yields NAME and NAME.grad for parameters, not {unknown[0]!r:.200}")
    return gradients


def gradient_passes(label: str, run: TrainingRun, stream: HeldStream, case: Case) -> Iterator[Pass]:
    """Yield a pass that judges the gradients of step `STEP` from the parameters before that step.

    Yield nothing if no head's bias is trained, or if one of these parameters is missing or not finite, which is a failure of its
    own.
    """
    loss = trained_loss(run)
    arrays, shapes = dict(stream), parameter_shapes(run.architecture)
    names = (*run.gradients[0], *run.untrained)
    read = {name: values_of(arrays.get(at(STEP - 1, name)), shapes[name]) for name in names}
    before = {name: x for name, x in read.items() if x is not None and np.isfinite(x).all()}
    if not loss or not run.gradients[0].keys() <= before.keys():
        return
    network = KeptSteps(run.architecture, {**run.weights, **before}, run.batch, source=loss)
    found = [(grad(name), arrays[at(STEP, grad(name))]) for name in run.gradients[0]]
    found += [(grad(name), held_in(case.dtype, np.zeros(shapes[name]))) for name in missing_gradients(run, network)]
    failure = partial(_failure, run, network, case)
    yield Pass(
        f"{label}, gradients of step {STEP}",
        "",
        network,
        partial(iter, found),
        describe_failure=failure,
        only_parameter_gradients=True,
    )


def trained_loss(run: TrainingRun) -> str:
    """Return the sum of the losses of the heads whose bias has a gradient, as text; empty if no head's bias has one."""
    return " + ".join(loss for bias, loss in _HEADS.items() if bias in run.gradients[0])


def missing_gradients(run: TrainingRun, network: Network) -> list[str]:
    """Return the names of the parameters that the candidate yields without a gradient and that the backward pass reaches."""
    return [name for name in run.untrained if grad(name) in network.table]


def _failure(run: TrainingRun, network: Network, case: Case) -> str:
    """Return a sentence that says how the gradients differ from the expected ones."""
    earlier, found = run.gradients[STEP - 2 : STEP]
    expected = {name: x for name, x in network.walk() if is_gradient(name)}
    missing = {name: np.zeros_like(expected[grad(name)]) for name in missing_gradients(run, network)}
    if wrong := _wrong(missing, network, case):
        return _untrained(wrong, network)
    left = _slope({name: x - expected[grad(name)] for name, x in found.items()}, earlier)  # the earlier gradient may be clipped
    if not _wrong({name: x - left * earlier[name] for name, x in found.items()}, network, case):
        return "the gradient of the step before is added to it: zero_grad() is missing"
    scale = _slope(found, {name: expected[grad(name)] for name in found})
    if scale and not _wrong({name: x / scale for name, x in found.items()}, network, case):
        return f"the gradient is {scale:.4g} times that of {network.source}: the loss, or the gradient, is scaled"
    return _OTHER.format(loss=network.source)


def _slope(found: Mapping[str, Array], of: Mapping[str, Array]) -> float:
    """Return the least-squares factor between two sets of gradients: found ≈ factor · of."""
    norm = sum(float(np.vdot(of[name], of[name])) for name in found)
    return sum(float(np.vdot(x, of[name])) for name, x in found.items()) / norm if norm else 0.0


def _wrong(gradients: Mapping[str, Array], network: Network, case: Case) -> list[str]:
    """Return the names of the gradients that differ from the expected ones by more than rounding in the case's format."""
    judge = Judge(network, case.dtype, case.device, functions=this_machine(case.device).error_bounds, depth="screen")
    stream = ((grad(name), held_in(case.dtype, x)) for name, x in gradients.items())
    return [verdict.activation for verdict, _ in judge.judge(stream) if verdict.outcome == "fail"]


def _untrained(gradients: Sequence[str], network: Network) -> str:
    """Return a sentence on parameters without a gradient, given the names of their gradients."""
    first, several = gradients[0].removesuffix(SUFFIX), len(gradients) > 1
    names = f"{first} and {len(gradients) - 1} more have" if several else f"{first} has"
    it, them, is_ = ("they", "them", "are") if several else ("it", "it", "is")
    return _NO_GRADIENT.format(names=names, loss=network.source, it=it, them=them, is_=is_)
