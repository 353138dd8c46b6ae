"""The other candidates in exported formats: traced, scripted, `torch.export` and ONNX, each written to a file and loaded."""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conformance import Architecture, Archive, Checkpoint, DependencyMissingError, TorchBatch

from .demystified import demystified
from .hugging_face import hf_eager, hf_sdpa
from .inner_workings import inner_workings
from .making_bert import making_bert

Example = tuple[Tensor, Tensor, Tensor]  # input ids, mask and token types on which an exporter runs the module
Write = Callable[[nn.Module, Example, Path], None]


@dataclass(frozen=True)
class Export:
    """A candidate's module, written to a file by an exporter and loaded from it.

    Attributes:
        name: name in results.
        of: the candidate.
        write: the exporter.
        suffix: suffix of the file.
        interior: whether every activation is made an output; otherwise interior activations are found in the graph.
        formats: formats in which the file can be run.
        observed: whether interior activations are captured.
        known_failures: a TOML file of known failures.
    """

    name: str
    of: Any
    write: Write
    suffix: str
    interior: bool = False
    formats: tuple[str, ...] = ("float64", "float32", "bfloat16", "float16")
    observed: bool = True
    known_failures: Path | None = None

    @property
    def unobserved(self) -> "Export":
        """The same candidate with only its outputs captured."""
        return replace(self, observed=False)

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return why the architecture is not supported: not on the CPU, not in this format, or not by the underlying candidate."""
        if torch.device(device).type != "cpu":
            return "it is exported for the CPU"
        if dtype not in self.formats:
            return f"what runs it has no kernels for all of BERT in {dtype}"
        reason: str | None = self.of.supports(architecture, device, dtype)
        return reason

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Iterator[tuple[str, Any]]]:
        """Write the file, unless it is in the cache of written files, and load it."""
        return Archive(self._file(checkpoint, dtype), observed=self.observed).prepare(checkpoint, device, dtype)

    def _file(self, checkpoint: Checkpoint, dtype: str) -> Path:
        key = (self.name, id(self.of), self.write, checkpoint.architecture, checkpoint.digest, dtype)
        if key not in _WRITTEN:
            while len(_WRITTEN) >= KEPT:
                del _WRITTEN[next(iter(_WRITTEN))]
            folder = tempfile.TemporaryDirectory()
            self._written(checkpoint, dtype, Path(folder.name) / f"{self.name}{self.suffix}")
            _WRITTEN[key] = (self.of, folder)  # a reference to the candidate keeps its id from being reused
        return Path(_WRITTEN[key][-1].name) / f"{self.name}{self.suffix}"

    def _written(self, checkpoint: Checkpoint, dtype: str, path: Path) -> None:
        module = (self.of.shown if self.interior else self.of.module)(checkpoint, "cpu", dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about deprecation, and about code that tracing cannot follow
            self.write(module, example(checkpoint.architecture), path)


KEPT = 4  # maximum number of files kept, because each check prepares a candidate anew, and some do for each example
_WRITTEN: "dict[tuple[Any, ...], tuple[Any, tempfile.TemporaryDirectory[str]]]" = {}


def example(a: Architecture) -> Example:
    """Return ids, mask and token types, (3, S), of sizes that no golden's batch has."""
    length = min(7, a.longest)
    ids = torch.arange(3 * length).reshape(3, length) % a.vocab_size
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    return ids, mask, torch.zeros_like(ids)


def traced(module: nn.Module, example: Example, path: Path) -> None:
    """Export by `torch.jit.trace`."""
    torch.jit.trace(module, example, strict=False).save(str(path))


def scripted(module: nn.Module, example: Example, path: Path) -> None:
    """Export by `torch.jit.script`, which compiles the source instead of tracing a run."""
    torch.jit.script(module).save(str(path))


def frozen(module: nn.Module, example: Example, path: Path) -> None:
    """Export by `torch.jit.script` and `torch.jit.freeze`, which makes the parameters unnamed constants."""
    torch.jit.freeze(torch.jit.script(module.eval())).save(str(path))


def exported(module: nn.Module, example: Example, path: Path) -> None:
    """Export by `torch.export`, for every batch size and length."""
    torch.export.save(torch.export.export(module, example, dynamic_shapes=_any_size()), path)


def onnx(module: nn.Module, example: Example, path: Path) -> None:
    """Export by torch's ONNX exporter, for every batch size and length.

    Raises:
        DependencyMissingError: onnx or onnxscript is not installed.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise DependencyMissingError(f"the ONNX exporter needs {', '.join(missing)}: pip install 'bert-conformance[onnx]'")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about other packages that are not installed
    torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=_any_size(), verbose=False)


def _any_size() -> dict[str, Any]:
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    return dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), axes)


making_bert_traced = Export("making-bert-traced", making_bert, traced, ".pt", interior=True)
making_bert_scripted = Export("making-bert-scripted", making_bert, scripted, ".pt")
inner_workings_traced = Export("inner-workings-traced", inner_workings, traced, ".pt", interior=True)
inner_workings_scripted = Export("inner-workings-scripted", inner_workings, frozen, ".pt")
demystified_traced = Export("demystified-traced", demystified, traced, ".pt", interior=True)
demystified_scripted = Export("demystified-scripted", demystified, scripted, ".pt")
hf_traced = Export("hf-traced", hf_eager, traced, ".pt", interior=True)
hf_exported = Export("hf-exported", hf_sdpa, exported, ".pt2")
hf_onnx = Export("hf-onnx", hf_sdpa, onnx, ".onnx", formats=("float32",), known_failures=Path(__file__).with_name("hf_onnx.toml"))
