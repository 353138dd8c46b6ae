"""The same input gives the same output, whatever was called before, and a call has no side effects.

Results must be bitwise equal on the CPU with one thread. On other devices, two runs may sum in different orders and are compared to
within rounding.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.candidates.arrays import described
from conformance.checks.laws.law import Law, Variation, run_of
from conformance.checks.search.agreement import RowPairs, require_agreement, require_identity
from conformance.checks.search.subject import Subject
from conformance.checks.search.surroundings import SETTINGS, ModuleState
from conformance.errors import CandidateError, Unsupported
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.results.example import Example, LawBroken, Run

AFRESH = 0.25  # share of the examples for a law of which each one prepares the candidate again


def _require_same(subject: Subject, first: Run, second: Run, *between: Run) -> float:
    alike = RowPairs(range(first.batch.size), range(first.batch.size))
    try:
        return (require_identity if subject.device == "cpu" else require_agreement)(subject, first, second, alike)
    except LawBroken as broken:
        broken.runs = (first, *between, second)
        raise


@Law.of(
    "repeated",
    proves="two runs give the same results, bit for bit",
    catches="a race condition in a kernel; random noise",
    remedy="Use deterministic kernels, and draw no random numbers in evaluation mode.",
)
def repeated(subject: Subject, example: Example) -> float:
    """A batch is run twice in succession."""
    with subject.surroundings.one_thread():
        return _require_same(subject, run_of(subject, example.batch), run_of(subject, example.batch))


def _between(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    """Return a strategy for the rows and tokens of the batch that an intermediate call uses, and for the shift of their ids."""
    return st.fixed_dictionaries(
        {
            "rows": st.integers(1, batch.size),
            "tokens": st.integers(1, batch.length),
            "shift": st.integers(0, architecture.vocab_size - 1),
        }
    )


@Law.of(
    "called-again",
    proves="a call gives the same results after other calls as it does as the first call, bit for bit",
    catches="a cache that is not cleared; a mask, token types or a length that are kept from the first call",
    remedy="Keep no data of one call for the next; compute lengths and masks in each call.",
    variations=_between,
    affords=AFRESH,
)
def called_again(subject: Subject, example: Example) -> float:
    """A batch gives the same result before and after another one, and the other one as in a first call."""
    fresh, one_more = subject.afresh(), other(example, subject.checkpoint.architecture)
    with subject.surroundings.one_thread():
        first, between = run_of(fresh, example.batch), run_of(fresh, one_more)
        again = run_of(fresh, example.batch)
        fresh = subject.afresh()
        return max(_require_same(fresh, first, again, between), _require_after(fresh, run_of(fresh, one_more), between, first))


def other(example: Example, architecture: Architecture) -> Batch:
    """Return an intermediate batch: other ids and token types, with each row's last token masked if the row has several."""
    rows, tokens = example.variation["rows"], example.variation["tokens"]
    ids = (example.batch.input_ids[:rows, :tokens] + example.variation["shift"]) % architecture.vocab_size
    mask = np.ones_like(ids)
    mask[:, 1:][:, -1:] = 0
    return Batch(ids, (example.batch.types[:rows, :tokens] + 1) % architecture.type_vocab_size, mask)


def _require_after(subject: Subject, alone: Run, after: Run, first: Run) -> float:
    """Require that the run `after`, which follows the run `first`, agrees with the run `alone` of the same batch."""
    try:
        return _require_same(subject, alone, after)
    except LawBroken as broken:
        broken.runs = (alone, replace(first, afresh=True), after)
        raise


def _seeds(batch: Batch, architecture: Architecture) -> st.SearchStrategy[Variation]:
    return st.fixed_dictionaries({"seeds": st.tuples(st.integers(0, 9), st.integers(10, 19)).map(list)})


@Law.of(
    "dropout-off",
    proves="the result does not depend on the random state, and no module is in training mode",
    catches="a missing call of eval()",
    remedy="Call eval() before the forward pass, and apply no dropout in evaluation mode.",
    variations=_seeds,
)
def dropout_off(subject: Subject, example: Example) -> float:
    """The flags of the modules are read, and a batch is run with two seeds."""
    surroundings, runs = subject.surroundings, []
    module = surroundings.module()
    training = [name or "the module itself" for name, is_training in module.training.items() if is_training] if module else []
    if training:
        raise LawBroken(
            f"in training mode: {', '.join(training[:3])} ({len(training)} modules in all); eval() was not called",
            claim="not any(part.training for part in runner.module.modules())",
        )
    with surroundings.one_thread():
        for seed in example.variation["seeds"]:
            with surroundings.seeded(seed):
                runs.append(run_of(subject, example.batch))
    return _require_same(subject, runs[0], runs[1])


@Law.of(
    "inputs-untouched",
    proves="a call does not change its inputs",
    catches="a mask that is inverted in place",
    remedy="Work on a copy: replace in-place operations on the inputs (`mask.sub_`) by out-of-place ones.",
)
def inputs_untouched(subject: Subject, example: Example) -> float:
    """The tensors of a batch are compared before and after a call."""
    handed: list[TorchBatch] = []

    def kept(batch: TorchBatch) -> TorchBatch:
        # References to the tensors are kept because the candidate may assign other tensors to the batch.
        handed.append(TorchBatch(**{name: getattr(batch, name) for name in example.batch.arrays()}))
        return batch

    run = Run(example.batch, subject.run(example.batch, kept))
    for name, array in example.batch.arrays().items():
        now = getattr(handed[0], name).cpu().numpy()
        if now.shape != array.shape or (now != array).any():
            rendered = f"writes into its input {name}; a batch is shared, and what a candidate changes it copies"
            raise LawBroken(rendered, (run,), watch=f"batch.{name}.tolist()")
    return 0.0


_UNLIKELY = 0x5EED0  # a seed that no candidate is likely to use, so that any seeding changes the random states


@Law.of(
    "settings-untouched",
    proves="a call leaves random states, default dtype and device, gradient mode and threads unchanged",
    catches="set_default_dtype() or manual_seed() in a forward pass",
    remedy="Change global state outside the forward pass, or restore it.",
    affords=AFRESH,
)
def settings_untouched(subject: Subject, example: Example) -> float:
    """The settings of the process are compared before and after the first call of a new runner, under default settings."""
    with subject.surroundings.usual():
        fresh = subject.afresh()
        with fresh.surroundings.seeded(_UNLIKELY):
            before = fresh.surroundings.settings()
            run = run_of(fresh, example.batch)
            after = fresh.surroundings.settings()
    changed = [name for name in SETTINGS if after.get(name) != before.get(name)]
    if changed:
        raise LawBroken(f"changes {', '.join(changed)}, and does not put it back", (run,), watch=SETTINGS[changed[0]])
    return 0.0


def module_of(subject: Subject) -> ModuleState:
    """Return the module that the subject runs; raise `Unsupported` if it is not known."""
    module = subject.surroundings.module()
    if module is None:
        raise Unsupported("its runner has no `module`, whose weights could be looked at")
    return module


def require_module(subject: Subject) -> None:
    """Raise `Unsupported` if it is not known which module the subject runs."""
    module_of(subject)


def _contents(subject: Subject, module: ModuleState) -> dict[str, Any]:
    """Return dtype, shape and bytes of every parameter and buffer by name; if it cannot be read, the reason."""
    return {name: _content(value) for name, value in subject.surroundings.tensors(list(module.tensors))}


def _content(value: Any) -> Any:
    try:
        array = described(value)
        return array.dtype, array.shape, array.read().tobytes()
    except CandidateError as error:
        return str(error)


@Law.of(
    "weights-untouched",
    proves="a call leaves weights, buffers and training flags unchanged, and no gradients behind",
    catches="running statistics; a module that calls eval() in its forward pass",
    remedy="Change no parameter, buffer or training flag in a forward pass.",
    applies=require_module,
    affords=AFRESH,
)
def weights_untouched(subject: Subject, example: Example) -> float:
    """The module is compared before and after the first call of a new runner."""
    fresh = subject.afresh()
    module = module_of(fresh)
    before = _contents(fresh, module)
    run = run_of(fresh, example.batch)
    later = module_of(fresh)
    after = _contents(fresh, later)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if changed:
        watch = f"{{n: str(t) for n, t in runner.module.named_buffers() if n in {changed[:5]!r}}}"
        raise LawBroken(f"a forward pass changes its own {', '.join(changed[:5])} ({len(changed)} in all)", (run,), watch=watch)
    switched = [name for name, is_training in later.training.items() if is_training != module.training.get(name)]
    if switched:
        watch = f"{{name: runner.module.get_submodule(name).training for name in {switched[:5]!r}}}"
        rendered = ", ".join(name or "the module itself" for name in switched[:5])
        raise LawBroken(f"a forward pass switches the training mode of {rendered}", (run,), watch=watch)
    graded = [name for name, held in later.tensors.items() if held.has_gradient]
    if graded:
        raise LawBroken(f"a forward pass leaves gradients at {', '.join(graded[:5])}", (run,))
    return 0.0
