"""What laws read and set around a candidate's calls: its module, and the settings of the process that it runs in.

What is read is data: it is compared by the law, which for a candidate in a worker is evaluated in the process that asks.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance.candidates.arrays import tensors_in
from conformance.candidates.torch_state import restored
from conformance.errors import Unsupported
from conformance.results.termination import call_candidate

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


class Held(msgspec.Struct, frozen=True):
    """A parameter or buffer of a module.

    Attributes:
        storage: the address of its memory; tensors that share memory have the same.
        shape: of the tensor.
        learns: whether it is a parameter.
        has_gradient: whether a gradient is kept at it.
    """

    storage: int
    shape: tuple[int, ...]
    learns: bool
    has_gradient: bool


class ModuleState(msgspec.Struct, frozen=True):
    """An `nn.Module`, without the values of its tensors.

    Attributes:
        tensors: parameters and buffers, each under every name that it has.
        attributes: the addresses of all tensors in an attribute that is neither, by the attribute's path.
        training: whether each part is in training mode, by its path.
    """

    tensors: dict[str, Held]
    attributes: dict[str, tuple[int, ...]]
    training: dict[str, bool]


class Surroundings(ABC):
    """Those of one runner. What the candidate's own code raises meanwhile is its `CandidateCrash`."""

    @abstractmethod
    def module(self) -> ModuleState | None:
        """The module that the runner says it runs; None where it says none."""

    @abstractmethod
    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """These parameters and buffers of the module, as they are now; of what is no array, `Unreadable`."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the module's state dict by safetensors; raises `Unsupported` where it holds what is no tensor."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Load what `save` wrote, strictly."""

    @abstractmethod
    def settings(self) -> Mapping[str, str]:
        """The process's, by the names of `SETTINGS`, in text."""

    @abstractmethod
    def usual(self) -> AbstractContextManager[object]:
        """Torch's default settings inside; those of before afterwards."""

    @abstractmethod
    def one_thread(self) -> AbstractContextManager[object]:
        """Torch computes by one thread inside."""

    @abstractmethod
    def seeded(self, seed: int) -> AbstractContextManager[object]:
        """Random numbers of torch, NumPy and Python from that seed on inside; the states of before afterwards."""


def surroundings_here(runner: Any, device: str) -> Surroundings:
    """Those of a runner in this process, which runs on that device."""
    return _Local(runner, device)


class _Local(Surroundings):
    def __init__(self, runner: Any, device: str) -> None:
        self._runner, self._device = runner, device

    def module(self) -> ModuleState | None:
        return call_candidate(lambda: _state(getattr(self._runner, "module", None)))

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        found = call_candidate(lambda: _tensors(self._runner.module))
        return ((name, found[name]) for name in names)

    def save(self, path: Path) -> None:
        from safetensors.torch import save_model

        state = call_candidate(lambda: dict(self._runner.module.state_dict()))
        odd = [name for name, value in state.items() if not hasattr(value, "dtype")]
        if odd:
            raise Unsupported(f"its state dict holds what is no tensor, and safetensors has none of it: {', '.join(odd)}")
        call_candidate(lambda: save_model(self._runner.module, str(path)))

    def load(self, path: Path) -> None:
        from safetensors.torch import load_model

        call_candidate(lambda: load_model(self._runner.module, str(path), strict=True, device=self._device))

    def settings(self) -> Mapping[str, str]:
        import torch

        return {name: str(eval(text, {"torch": torch, "np": np, "random": random})) for name, text in SETTINGS.items()}

    @contextmanager
    def usual(self) -> Iterator[None]:
        import torch

        with restored():
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            torch.use_deterministic_algorithms(False)
            np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
            yield

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        import torch

        states = np.random.get_state(), random.getstate()
        with torch.random.fork_rng():
            for start in (torch.manual_seed, np.random.seed, random.seed):
                start(seed)
            try:
                yield
            finally:
                np.random.set_state(states[0])
                random.setstate(states[1])


def _tensors(module: Any) -> dict[str, Any]:
    """Parameters and buffers, those that are not saved among them, by each of their names."""
    named = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return {**dict(named[0]), **dict(named[1])}


def _state(module: Any) -> ModuleState | None:
    from torch import nn

    if module is None:
        return None
    held = {
        name: Held(_storage(t), tuple(t.shape), isinstance(t, nn.Parameter), t.grad is not None)
        for name, t in _tensors(module).items()
    }
    attributes = {
        f"{path}.{name}".strip("."): tuple(map(_storage, tensors_in(value)))
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers", "_modules")
    }
    training = {path: bool(part.training) for path, part in module.named_modules()}
    return ModuleState(held, {path: found for path, found in attributes.items() if found}, training)


def _storage(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # sparse, or of a class that wraps others: it shares with none
        return id(tensor)
