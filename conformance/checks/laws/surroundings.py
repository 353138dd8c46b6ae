"""A call has no side effects: its inputs, its weights and the settings of its process are unchanged after it."""

import random
from typing import Any

import numpy as np

from conformance.candidates.torch_state import restored
from conformance.checks.laws.law import Law
from conformance.checks.search.subject import Subject
from conformance.errors import Unsupported
from conformance.model.batch import TorchBatch
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken, Run


def _inputs_are_untouched(subject: Subject, example: Example) -> float:
    handed: list[TorchBatch] = []

    def kept(batch: TorchBatch) -> TorchBatch:
        # The tensors are held here, so that what is put in their place on the batch is no matter.
        handed.append(TorchBatch(**{name: getattr(batch, name) for name in example.batch.arrays()}))
        return batch

    run = Run(example.batch, subject.run(example.batch, kept))
    for name, array in example.batch.arrays().items():
        found = getattr(handed[0], name).cpu().numpy()
        if found.shape != array.shape or (found != array).any():
            rendered = f"writes into its input {name}; a batch is shared, and what a candidate changes it copies"
            raise LawBroken(rendered, (run,), watch=f"batch.{name}.tolist()")
    return 0.0


inputs_untouched = Law(_inputs_are_untouched, in_its_process=True)

# Python, so that a script can ask as well.
SETTINGS = {
    "torch's random state": "torch.get_rng_state().tolist()",
    "a device's random state": "[state.tolist() for state in torch.cuda.get_rng_state_all()]",
    "NumPy's random state": "[np.asarray(part).tolist() for part in np.random.get_state()]",
    "Python's random state": "random.getstate()",
    "the default dtype": "torch.get_default_dtype()",
    "the default device": "torch.get_default_device()",
    "gradient mode": "torch.is_grad_enabled()",
    "inference mode": "torch.is_inference_mode_enabled()",
    "autocast": "torch.is_autocast_enabled('cpu')",
    "the number of threads": "torch.get_num_threads()",
    "deterministic algorithms": "torch.are_deterministic_algorithms_enabled()",
    "the precision of float32 products": "torch.get_float32_matmul_precision()",
    "NumPy's handling of errors": "np.geterr()",
}


def _settings() -> dict[str, Any]:
    import torch

    return {name: eval(expression, {"torch": torch, "np": np, "random": random}) for name, expression in SETTINGS.items()}


def _settings_are_untouched(subject: Subject, example: Example) -> float:
    """On a candidate that has not been called, under settings that are usual, so that what its first call does is seen."""
    import torch

    with restored(), torch.random.fork_rng():
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
        fresh = subject.afresh()
        # Random states that nobody sets: who seeds with 0 would find them so. Hypothesis puts back NumPy's and Python's.
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(_UNLIKELY)
        return _require_settings(fresh, example)


_UNLIKELY = 0x5EED0


def _require_settings(subject: Subject, example: Example) -> float:
    before = _settings()
    run = Run(example.batch, subject.run(example.batch))
    changed = [name for name, value in _settings().items() if value != before[name]]
    if changed:
        raise LawBroken(f"changes {', '.join(changed)}, and does not put it back", (run,), watch=SETTINGS[changed[0]])
    return 0.0


settings_untouched = Law(_settings_are_untouched, affords=0.25, in_its_process=True)  # each is prepared anew


def require_module(subject: Subject) -> None:
    """Raise `Unsupported` where it is not known which module runs."""
    if subject.module is None:
        raise Unsupported("its runner has no `module`, whose weights could be looked at")


def _tensors(module: Any) -> dict[str, Any]:
    """Parameters and buffers, those that are not saved among them."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _weights_are_untouched(subject: Subject, example: Example) -> float:
    """On a candidate that has not been called, so that what its first call does is seen."""
    fresh = subject.afresh()
    module = fresh.module
    before = {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}
    modes = {name: part.training for name, part in module.named_modules()}
    run = Run(example.batch, fresh.run(example.batch))
    after = _tensors(module)
    changed = [name for name in {**before, **after} if name not in before or name not in after]
    changed += [n for n in before if n in after and not _is_same(before[n], after[n].detach())]
    if changed:
        watch = f"{{n: str(t) for n, t in runner.module.named_buffers() if n in {changed[:5]!r}}}"
        raise LawBroken(f"a forward pass changes its own {', '.join(changed[:5])} ({len(changed)} in all)", (run,), watch=watch)
    switched = [name for name, part in module.named_modules() if part.training != modes.get(name)]
    if switched:
        watch = f"{{name: runner.module.get_submodule(name).training for name in {switched[:5]!r}}}"
        rendered = ", ".join(name or "the module itself" for name in switched[:5])
        raise LawBroken(f"a forward pass switches the training mode of {rendered}", (run,), watch=watch)
    graded = [name for name, tensor in after.items() if tensor.grad is not None]
    if graded:
        raise LawBroken(f"a forward pass leaves gradients at {', '.join(graded[:5])}", (run,))
    return 0.0


def _is_same(a: Any, b: Any) -> bool:
    """Bit for bit, but that not-a-number is itself."""
    import torch

    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


weights_untouched = Law(_weights_are_untouched, applies=require_module, affords=0.25, in_its_process=True)
