"""Passes in training mode, with dropout masks that are read from the results, and the parameters with which training starts."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.candidates.arrays import Described, described, pairs
from conformance.candidates.registry import Runner
from conformance.checks.backward_passes import backward_passes_of
from conformance.checks.check import Request
from conformance.checks.contract import ability, guarded, yielded
from conformance.checks.judgement import Judgement
from conformance.checks.passes import Pass, forward_passes_of, opened
from conformance.errors import CandidateError, NotApplicable, Unsupported
from conformance.goldens.golden import with_config
from conformance.judge.dropout_masks import Draw, requested, wrong_draws
from conformance.judge.initial_draws import wrong_initially
from conformance.judge.judge import Judge
from conformance.judge.judged_elements import judged_elements
from conformance.judge.segment import between
from conformance.model.activations import OPTIONAL, dropouts, parameter_shapes, setting_of
from conformance.model.gradients import grad
from conformance.model.training import at
from conformance.numerics.formats import Array, Mask, format_named
from conformance.numerics.machine import this_machine
from conformance.oracle import Network
from conformance.oracle.training_run import Initialization
from conformance.results.case import Case
from conformance.results.termination import call_candidate

# The requested dropout rates, whatever those of the golden are.
RATES: Mapping[str, float] = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.3,
    "activation_dropout": 0.2,
    "classifier_dropout": 0.4,
}

HeldStream = list[tuple[Any, Any]]  # the pairs of a stream, all held in memory


@Judgement.of(
    "training-mode",
    proves="dropout acts at the right places, at its rates, on each element independently; all else is correct under its masks",
    catches="dropout after the norm, or none on the probabilities; a rate other than the config's; masks that repeat",
    remedy="Take the first origin: a dropout is missing there, is superfluous, or does not follow the config.",
)
def training_mode(request: Request) -> Sequence[Pass]:
    """Dropout masks are read from the results of the dropouts, and all else is judged under these masks.

    Each element must have been dropped independently at the rate of its dropout; exact binomial tests examine every axis, different
    layers and different calls. A dropout that is not exposed must have an effect, and is switched off for the rest of the check.
    Under the masks read, every other activation and gradient is judged with the same tolerances as in evaluation mode.

    The requested rates differ from each other, so that a confusion of two rates is visible, and none is 1/2, where 1/p = 1/(1 − p).
    If a candidate does not expose every dropout of a rate, that rate is set to 0 in the judgement, since a mask that is not exposed
    cannot be taken into account. Whether such a dropout acts is decided by an activation that follows it, which must differ from
    its value without dropout.
    """
    shown = _shown(request.on(with_config(request.golden, **RATES)))
    rates = {setting: rate if setting in shown else 0.0 for setting, rate in RATES.items()}
    if not any(rates.values()):
        raise NotApplicable("it does not expose all dropouts of any rate: embeddings.dropout and those of the layers")
    dropping = request.on(with_config(request.golden, **rates))
    runner = opened(dropping)
    return [one for batch in _by_batch(_passes(runner, dropping)) for one in _in_training(runner, batch)]


def _shown(request: Request) -> set[str]:
    """Return the rates whose dropouts are all exposed; raise `CandidateError` if an unexposed dropout has no effect."""
    runner = opened(request)
    one = forward_passes_of(runner, request, request.case.device)[0]
    stream = _held(in_training(runner, 0, partial(_called, one)), one.network)
    every = dropouts(request.golden.checkpoint.architecture)
    unexposed = [name for name in every if name not in dict(stream)]
    usual = [name for name in unexposed if setting_of(name) not in OPTIONAL]
    _require_dropping(_with_masks(one, stream, drawn(one.network, dict(stream))), usual, request.case)
    return {setting_of(name) for name in every} - {setting_of(name) for name in unexposed}


def _require_dropping(one: Pass, unexposed: Collection[str], case: Case) -> None:
    """Raise `CandidateError` if an activation after an unexposed dropout has its value without dropout."""
    stream: HeldStream = list(one.call())
    judge = Judge(one.network, case.dtype, case.device, functions=this_machine(case.device).error_bounds, depth="screen")
    order = judge.order
    for verdict, _ in judge.judge(iter(stream)):
        if verdict.outcome == "pass":
            earlier = {name for name, _ in stream if order.get(name, len(order)) < order[verdict.activation]}
            idle = [name for name in between(one.network, verdict.activation, earlier) if name in unexposed]
            if idle:
                rates = " and ".join(dict.fromkeys(f"{setting_of(n)} = {RATES[setting_of(n)]:g}" for n in idle))
                raise CandidateError(
                    f"nothing is dropped at {', '.join(idle)} in training mode: {verdict.activation} is what it would be without "
                    f"dropout; {requested(rates)}; a candidate that is not to be trained declares "
                    "evaluation_only=True"
                )


def _passes(runner: Runner, request: Request) -> Sequence[Pass]:
    """Return the backward passes or, if these are not applicable, the forward passes."""
    try:
        return backward_passes_of(runner, request)
    except NotApplicable:
        return forward_passes_of(runner, request, request.case.device)


def _by_batch(passes: Sequence[Pass]) -> Iterator[Sequence[Pass]]:
    for name in dict.fromkeys(one.batch for one in passes):
        yield [one for one in passes if one.batch == name]


def _in_training(runner: Runner, passes: Sequence[Pass]) -> Iterator[Pass]:
    """Call the passes of one batch, the first one twice, and yield them; each call's masks are compared with the previous ones."""
    calls = [passes[0], *passes]
    streams = [_held(in_training(runner, seed, partial(_called, one)), one.network) for seed, one in enumerate(calls)]
    draws = [drawn(one.network, dict(stream)) for one, stream in zip(calls, streams, strict=True)]
    for number in range(1, len(calls)):
        wrong = partial(_wrong_in, draws, number)
        yield replace(_with_masks(calls[number], streams[number], draws[number]), reasons_by_activation=wrong)


def _wrong_in(draws: Sequence[Mapping[str, Draw]], number: int, alpha: float) -> Mapping[str, str]:
    """Return what is wrong with the masks of one of several calls; `alpha` is the false-alarm probability of all calls."""
    return wrong_draws(draws, alpha)[number]


def _with_masks(one: Pass, stream: HeldStream, masks: Mapping[str, Draw]) -> Pass:
    """Return a pass that replays a recorded stream and is judged under the masks of its dropouts."""
    kept = {name: draw.kept for name, draw in masks.items()} | zeroed(one.network, dict(stream))
    network = replace(one.network, kept={name: mask.astype(np.float64) for name, mask in kept.items()})
    return Pass(f"{one.label}, training", "", network, partial(iter, stream))


def _called(one: Pass) -> Iterator[tuple[str, Any]]:
    return pairs(one.call(), one.network.table)


def in_training(runner: Runner, seed: int, call: Callable[[], Iterator[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """Yield the pairs of a call with the runner in training mode and torch seeded; restore mode and random state afterwards.

    Raises:
        NotApplicable: if the runner has no training mode, or refuses it with `Unsupported`.
    """
    train = ability(runner, "train")
    with random_numbers_from(seed):
        try:
            call_candidate(lambda: train(True), may_refuse=True)
        except Unsupported as why:
            raise NotApplicable(str(why)) from why
        try:
            yield from guarded(call())
        finally:
            call_candidate(lambda: train(False))


@contextmanager
def random_numbers_from(seed: int) -> Iterator[None]:
    """Return a context manager that seeds torch's random numbers and restores the previous random state."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _held(stream: Iterator[tuple[str, Any]], network: Network) -> HeldStream:
    """Return the pairs in table order, since a misplaced dropout comes late; values are copied, as memory may be reused."""
    order = {name: i for i, name in enumerate(network.table)}
    return sorted(((name, read(value)) for name, value in stream), key=lambda pair: order.get(pair[0], len(order)))


def read(value: Any) -> Any:
    """Return an array with a copy of its current values, and anything else unchanged."""
    try:
        found = described(value)
        values = np.array(found.read())
    except CandidateError:
        return value  # the judge reports what is wrong with it
    return Described(found.dtype, found.shape, found.device, partial(np.asarray, values))


def drawn(network: Network, found: Mapping[str, Any]) -> dict[str, Draw]:
    """Return the masks of the dropouts among a candidate's activations; an element is dropped if its result is 0.

    If the input of an element is 0, its result is 0 in either case; then the gradients, if exposed, show whether it was dropped.
    """
    a, batch, masks = network.architecture, network.batch, dict[str, Draw]()
    for name, row in dropouts(a).items():
        shape, (parent,) = row.shape(batch.size, batch.length, a.num_attention_heads, batch.states_length), row.parents
        y, x, ahead, behind = (values_of(found.get(n), shape) for n in (name, parent, grad(name), grad(parent)))
        if y is None:
            continue
        judged = judged_elements(row, batch, shape)
        known = judged if x is None else judged & (x != 0.0)
        unknown = ~judged if x is None else x == 0.0
        if ahead is not None and behind is not None:
            unknown = unknown & ~((ahead != 0.0) & (behind == 0.0))
        masks[name] = Draw.of(row, a, (y != 0.0) | unknown, known)
    return masks


def zeroed(network: Network, found: Mapping[str, Any]) -> dict[str, Mask]:
    """Return the masks of nonzero elements of norms that have exact zeros, which only a dropout produces."""
    a, batch, masks = network.architecture, network.batch, dict[str, Mask]()
    for name, row in network.table.items():
        shape = row.shape(batch.size, batch.length, a.num_attention_heads, batch.states_length)
        y = values_of(found.get(name), shape) if row.kind == "norm" else None
        if y is not None and (y == 0.0).any(where=judged_elements(row, batch, shape)):
            masks[name] = y != 0.0
    return masks


def values_of(value: Any, shape: tuple[int, ...]) -> Array | None:
    """Return the values in float64; None if `value` is not an array of that shape."""
    if not isinstance(value, Described) or value.shape != shape:
        return None
    return np.asarray(value.read(), np.float64)


# The requested initializer_range. BERT's usual value, 0.02, would not reveal a hard-coded range, and hardly torch's default:
# U(± 1/√768) of base width has a standard deviation of 1/√(3 · 768) = 0.0208.
RANGE = 0.05


@Judgement.of(
    "initialization",
    proves="training starts from BERT's parameters: biases 0, LayerNorm weights 1, the rest drawn from N(0, initializer_range²)",
    catches="a framework's default initialization; layers that start as copies of each other; a range other than the config's",
    remedy="Draw each matrix and table anew with the initializer_range; set biases to 0, LayerNorm weights to 1.",
)
def initialization(request: Request) -> Sequence[Pass]:
    """The config's `initializer_range` is set to an unusual value. Biases must be 0 and LayerNorm weights 1.

    All other parameters must be drawn from N(0, initializer_range²), truncated or not; exact tests examine their moments, largest
    element and distribution, and the independence within and between parameters (`conformance.judge.initial_draws`).
    """
    asked = request.on(with_config(request.golden, initializer_range=RANGE))
    initial = ability(opened(asked), "initial")
    with random_numbers_from(0):
        stream = [(f"{at(0, '')}{name}" if isinstance(name, str) else name, read(value)) for name, value in yielded(initial)]
    architecture = asked.golden.checkpoint.architecture
    arrays = {name: value for name, value in stream if isinstance(name, str)}
    network = Initialization(architecture, {}, next(iter(asked.golden.batches.values())))
    values = {name: values_of(arrays.get(at(0, name)), shape) for name, shape in parameter_shapes(architecture).items()}
    found = {name: x for name, x in values.items() if x is not None and np.isfinite(x).all()}

    def wrong(alpha: float) -> dict[str, str]:
        sentences = wrong_initially(found, architecture, format_named(request.case.dtype), alpha)
        return {at(0, name): sentence for name, sentence in sentences.items()}

    return [Pass("initial", "", network, partial(iter, stream), reasons_by_activation=wrong)]
