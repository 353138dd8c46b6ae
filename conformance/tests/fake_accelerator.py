"""A fake accelerator: a torch device `pretend` whose tensors are stored on the CPU and report that they are not.

It is strict where CUDA is strict: its tensors do not mix with those of the CPU, NumPy cannot read them, and a look-up outside
of a table breaks the device for the whole process. As on CUDA, that error is raised later, where a result is copied to the
CPU. Its attention multiplies float32 as kernels for tensor cores do. It uses PyTorch's interface for third-party devices
(PrivateUse1); torch loads it through the entry point `torch.backends` that `installed` writes."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import library
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from conformance.tests import matrix_unit

NAME = "pretend"
_LOOK_UPS = (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default)
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
_broken = False
_registered: library.Library


class Away(torch.Tensor):
    """A tensor on the device; `here` is the CPU tensor that stores its values."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> "Away":
        made = torch.Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype, device=f"{NAME}:0"
        )
        made.here = here
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():  # A tensor moved back to the CPU is an ordinary tensor.
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _on_the_device(func, *args, **(kwargs or {}))


class _Maker(_DummyBackendModule):
    def get_device_name(self, device: Any = None) -> str:
        return "a device that is none"


def load() -> None:
    """Register the device with torch. torch calls this itself when it is imported."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Maker())
    global _registered
    _registered = library.Library("_", "IMPL")  # A registration is undone when its library object is deleted.
    _registered.fallback(_on_the_device, "PrivateUse1")


def installed(folder: Path) -> None:
    """Write the entry point into a folder; torch finds the device wherever that folder is on the path."""
    about = folder / "pretend_device-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend-device\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\n{NAME} = {__name__}:load\n")


def _on_the_device(func: Any, *args: Any, **kwargs: Any) -> Any:
    moves, wanted = func in _MOVES, kwargs.get("device")
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")

    def to_here(x: Any) -> Any:
        if isinstance(x, Away):
            return x.here
        if isinstance(x, torch.Tensor) and x.dim() and not moves:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {NAME}:0 and {x.device}")
        return x

    arguments = tree_map(to_here, args)
    if func in _LOOK_UPS:
        arguments = _looked_up(arguments)
    made = func(*arguments, **tree_map(to_here, kwargs))
    stays = isinstance(args[0], Away) or not moves if wanted is None else torch.device(wanted).type == NAME
    if _broken and not stays:
        raise RuntimeError("pretend error: device-side assert triggered")
    known = {id(x.here): x for x in args if isinstance(x, Away)}  # An in-place operation returns the tensor that it was given.

    def away(x: Any) -> Any:
        if not stays or not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Away(x)

    return tree_map(away, made)


def _looked_up(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a look-up with its rows inside of the table; rows outside of it break the device."""
    global _broken
    table, rows = (i for i, x in enumerate(arguments) if isinstance(x, torch.Tensor))
    within = arguments[rows].clamp(0, len(arguments[table]) - 1)
    _broken = _broken or not torch.equal(within, arguments[rows])
    return (*arguments[:rows], within, *arguments[rows + 1 :])


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **kwargs: Any) -> Any:
    q, k, v = (x.here for x in (query, key, value))
    mask = torch.zeros((), dtype=q.dtype) if attn_mask is None else attn_mask.here
    added = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else mask
    if q.dtype != torch.float32:
        return Away(F.scaled_dot_product_attention(q, k, v, attn_mask=added.to(q.dtype)))
    return Away(matrix_unit.attention(q, k, v, added))
