"""A call has no side effects: its inputs, its weights and the settings of its process are unchanged after it."""

from typing import Any

from conformance.candidates.arrays import described
from conformance.checks.laws.law import Law, run_of
from conformance.checks.search.subject import Subject
from conformance.checks.search.surroundings import SETTINGS, ModuleState
from conformance.errors import CandidateError, Unsupported
from conformance.model.batch import TorchBatch
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken, Run


def _inputs_are_untouched(subject: Subject, example: Example) -> float:
    handed: list[TorchBatch] = []

    def kept(batch: TorchBatch) -> TorchBatch:
        # References to the tensors are kept because the candidate may assign other tensors to the batch.
        handed.append(TorchBatch(**{name: getattr(batch, name) for name in example.batch.arrays()}))
        return batch

    run = Run(example.batch, subject.run(example.batch, kept))
    for name, array in example.batch.arrays().items():
        found = getattr(handed[0], name).cpu().numpy()
        if found.shape != array.shape or (found != array).any():
            rendered = f"writes into its input {name}; a batch is shared, and what a candidate changes it copies"
            raise LawBroken(rendered, (run,), watch=f"batch.{name}.tolist()")
    return 0.0


inputs_untouched = Law(_inputs_are_untouched)

_UNLIKELY = 0x5EED0  # a seed that no candidate is likely to use, so that any seeding changes the random states


def _settings_are_untouched(subject: Subject, example: Example) -> float:
    """Require that the first call of a new runner, under default settings, leaves the settings of the process unchanged."""
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


settings_untouched = Law(_settings_are_untouched, affords=0.25)  # each example prepares the candidate again


def module_of(subject: Subject) -> ModuleState:
    """Return the module that the subject runs; raise `Unsupported` if it is not known."""
    found = subject.surroundings.module()
    if found is None:
        raise Unsupported("its runner has no `module`, whose weights could be looked at")
    return found


def require_module(subject: Subject) -> None:
    """Raise `Unsupported` if it is not known which module the subject runs."""
    module_of(subject)


def _contents(subject: Subject, module: ModuleState) -> dict[str, Any]:
    """Return dtype, shape and bytes of every parameter and buffer by name; if it cannot be read, the reason."""
    return {name: _content(value) for name, value in subject.surroundings.tensors(list(module.tensors))}


def _content(value: Any) -> Any:
    try:
        found = described(value)
        return found.dtype, found.shape, found.read().tobytes()
    except CandidateError as error:
        return str(error)


def _weights_are_untouched(subject: Subject, example: Example) -> float:
    """Require that the first call of a new runner changes no weight, buffer or training flag and leaves no gradient."""
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


weights_untouched = Law(_weights_are_untouched, applies=require_module, affords=0.25)
