"""The surroundings of a candidate's calls, which laws read and set: its module, and the settings of its process.

Everything read is plain data, since laws compare it in the main process even if the candidate runs in a worker.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance.candidates.arrays import tensors_in
from conformance.candidates.torch_state import restored
from conformance.errors import Unsupported
from conformance.results.termination import call_candidate

# Python expressions, so that the scripts that reproduce failures can use them too.
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
    "the precision of float32 products": (  # The older interface raises where the newer one was used.
        "[p.fp32_precision for p in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)] "
        "if hasattr(torch.backends, 'fp32_precision') else torch.get_float32_matmul_precision()"
    ),
    "NumPy's handling of errors": "np.geterr()",
}


class ModuleTensor(msgspec.Struct, frozen=True):
    """A parameter or buffer of a module.

    Attributes:
        storage: the address of its memory; tensors that share memory have the same address.
        address: the address of its first element.
        shape: the shape of the tensor.
        learns: whether the tensor is a parameter.
        has_gradient: whether its `grad` is not None.
    """

    storage: int
    address: int
    shape: tuple[int, ...]
    learns: bool
    has_gradient: bool


class ModuleState(msgspec.Struct, frozen=True):
    """An `nn.Module`, without the values of its tensors.

    Attributes:
        tensors: the parameters and buffers, each under all of its names.
        attributes: the addresses of the tensors in other attributes, by the attribute's path.
        training: whether each submodule is in training mode, by its path.
    """

    tensors: dict[str, ModuleTensor]
    attributes: dict[str, tuple[int, ...]]
    training: dict[str, bool]


class Surroundings:
    """The surroundings of one runner in this process; exceptions of the candidate's code are raised as `CandidateCrash`.

    Those of a runner in a worker have the same methods, which are called there.
    """

    def __init__(self, runner: Any, device: str) -> None:
        """Store the runner and the device that it uses."""
        self._runner, self._device = runner, device

    def module(self) -> ModuleState | None:
        """Return the state of the runner's attribute `module`; None if it has none."""
        return call_candidate(lambda: _state(getattr(self._runner, "module", None)))

    def tensors(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Return the current values of these parameters and buffers by name; `Unreadable` for one that is not an array."""
        found = call_candidate(lambda: _tensors(self._runner.module))
        return ((name, found[name]) for name in names)

    def save(self, path: Path) -> None:
        """Write the module's state dict with safetensors; raise `Unsupported` if it contains anything but tensors."""
        from safetensors.torch import save_file

        state = call_candidate(lambda: dict(self._runner.module.state_dict()))
        odd = [name for name, value in state.items() if not hasattr(value, "dtype")]
        if odd:
            raise Unsupported(f"safetensors cannot store what its state dict has besides tensors: {', '.join(odd)}")
        # Tensors may be views of one buffer, of which safetensors stores none.
        call_candidate(lambda: save_file({name: value.detach().clone().contiguous() for name, value in state.items()}, path))

    def load(self, path: Path) -> None:
        """Load a state dict written by `save`, with strict matching of names."""
        from safetensors.torch import load_file

        call_candidate(lambda: self._runner.module.load_state_dict(load_file(path, self._device), strict=True))

    def settings(self) -> Mapping[str, str]:
        """Return the settings of the process as text, by the names in `SETTINGS`."""
        import torch

        return {name: str(eval(text, {"torch": torch, "np": np, "random": random})) for name, text in SETTINGS.items()}

    @contextmanager
    def usual(self) -> Iterator[None]:
        """Set torch's default settings, and restore the previous ones."""
        import torch

        with restored():
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            torch.use_deterministic_algorithms(False)
            np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
            yield

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Limit torch to one thread."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seed torch, NumPy and Python, and restore the previous random states."""
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
    """Return parameters and buffers, including non-persistent ones, under all of their names."""
    named = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return {**dict(named[0]), **dict(named[1])}


def _state(module: Any) -> ModuleState | None:
    from torch import nn

    if module is None:
        return None
    held = {
        name: ModuleTensor(_storage(t), _address(t), tuple(t.shape), isinstance(t, nn.Parameter), t.grad is not None)
        for name, t in _tensors(module).items()
    }
    attributes = {
        f"{path}.{name}".strip("."): tuple(map(_storage, tensors_in(value)))
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers", "_modules") and name not in _recomputed(part)
    }
    training = {path: bool(part.training) for path, part in module.named_modules()}
    return ModuleState(held, {path: found for path, found in attributes.items() if found}, training)


def _recomputed(part: Any) -> set[str]:
    """Return the attributes that torch's pruning, weight norm and spectral norm compute anew before each call of a module."""
    hooks = (hook for hook in part._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.nn.utils."))
    return {getattr(hook, "name", getattr(hook, "_tensor_name", "")) for hook in hooks}


def _address(tensor: Any) -> int:
    try:
        return int(tensor.data_ptr())
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _storage(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # a sparse tensor or a wrapper class has no shared storage
        return id(tensor)
