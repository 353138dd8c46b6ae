"""A judgement of training loops: each step of the optimizer is judged from its gradients and the parameters before it.

The function passed as `TorchImplementation(train=…)` takes the module and a `conformance.Training` (settings with the names of
transformers' `TrainingArguments`). It returns a function of a batch that performs one step: forward and backward pass, clipping,
the optimizer's step and the schedule's step. The expected step clips by the global norm; applies AdamW (Loshchilov and Hutter 2019)
or BERT's own Adam without bias correction; and uses transformers' linear or inverse-square-root schedule or BERT's own. The
gradients of one step are judged from the parameters before it. This finds a missing `zero_grad()`, a loss that is scaled wrongly
when gradients are accumulated, and parameters that are not trained although the loss depends on them.

A gradient is read after the last backward pass, and again before a call of `torch.nn.utils.clip_grad_norm_` or after
`GradScaler.unscale_`. A loop that rescales its gradients in another way, or assigns them to `.grad`, must clip by calling
`torch.nn.utils.clip_grad_norm_` under this name; otherwise its gradients are read before they are rescaled, or not at all.

The dropout rates are set to 0, so that each step is repeatable. A loop that does not call `model.train()` computes the same values
and passes; the module is passed to it in evaluation mode.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from conformance.candidates.arrays import Described, held_in
from conformance.candidates.registry import Implementation, Runner
from conformance.checks.candidate_stream import yielded
from conformance.checks.contract import ability
from conformance.checks.loop_gradients import gradient_passes
from conformance.checks.passes import Pass, opened
from conformance.checks.training_passes import RATES, HeldStream, random_numbers_from, read
from conformance.errors import CandidateError, NotApplicable, Unsupported
from conformance.goldens.golden import Golden, with_config
from conformance.model.activations import parameter_shapes, table
from conformance.model.checkpoint import rounded_weights
from conformance.model.gradients import SUFFIX, is_gradient
from conformance.model.training import SCHEDULED, STEPPED, STEPS, WHOLE, Training, at, parameter_of
from conformance.numerics.formats import Array
from conformance.oracle.training_run import TrainingRun
from conformance.results.case import Case
from conformance.results.termination import call_candidate

T = TypeVar("T")


def optimizer_passes(candidate: Implementation, golden: Golden, case: Case) -> Sequence[Pass]:
    """Return passes of a few steps with each setting in `STEPPED` and of the first run's gradients; raise as `runs_of` does."""
    found = list(runs_of(candidate, golden, case, STEPPED, STEPS))
    label, (network, stream) = found[0]
    return [*gradient_passes(label, network, stream, case), *(_pass(label, *run) for label, run in found)]


def schedule_passes(candidate: Implementation, golden: Golden, case: Case) -> Sequence[Pass]:
    """Return a pass of a whole run per setting in `SCHEDULED` that judges the largest parameter; raise as `runs_of` does."""
    found = []
    for label, (network, stream) in runs_of(candidate, golden, case, SCHEDULED, WHOLE):
        first = network.gradients[0]
        largest = max(first, key=lambda name: first[name].size)
        seen = [pair for pair in stream if is_gradient(pair[0]) or parameter_of(pair[0]) == largest]
        found.append(_pass(label, replace(network, judged=(largest,)), seen))
    return found


def _pass(label: str, network: TrainingRun, stream: HeldStream) -> Pass:
    return Pass(label, "", network, partial(iter, [pair for pair in stream if parameter_of(pair[0]) not in network.untrained]))


def runs_of(
    candidate: Implementation, golden: Golden, case: Case, settings: Mapping[str, Training], steps: int
) -> Iterator[tuple[str, tuple[TrainingRun, HeldStream]]]:
    """Yield the label and the run of each of the settings that the candidate supports.

    Raises:
        NotApplicable: if the runner has no training loop or supports none of the settings, if the network has no loss, or if the
            format is float16, in which Adam's second moments underflow.
        Unsupported, CandidateFailure: as raised by `opened` and the steps.
    """
    if case.dtype == "float16":
        raise NotApplicable("in float16 the second moments of Adam underflow")
    if not any(name.endswith(".loss") for name in table(golden.checkpoint.architecture)):
        raise NotApplicable(f"{golden.name} has no head with a loss, from which a step could be computed")
    yield from with_each(candidate, golden, case, settings, partial(_run, golden, case, steps))


def with_each(
    candidate: Implementation, golden: Golden, case: Case, settings: Mapping[str, Training], run: Callable[[Runner, Training], T]
) -> Iterator[tuple[str, T]]:
    """Yield the label of each of the settings and the value of `run` for it, each with a new runner and without dropout.

    Settings for which `run` raises `Unsupported` are omitted.

    Raises:
        NotApplicable: if all settings are omitted.
        Unsupported, CandidateFailure: as raised by `opened`.
    """
    still, refusals = with_config(golden, **dict.fromkeys(RATES, 0.0)), []  # with dropout, no loss is repeatable
    for label, training in settings.items():
        runner = opened(candidate, still, case)
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
