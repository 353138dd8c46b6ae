"""Exported programs as candidates: a TorchScript archive, an exported program, an ONNX model.

Python's hooks never fire in them. Their interior activations are values of their graphs, found by the parameters of the checkpoint
(`conformance.candidates.archives.locate`). To look at them may change how a runtime fuses its operations, so the program as it
is, of which only the outputs are seen, is a candidate too: `Archive.unobserved`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.candidates.archives.locate import located
from conformance.candidates.archives.observed import activations, in_format, output_labels, outputs_by_shape, settled
from conformance.candidates.archives.parameters import reason_against, recognised
from conformance.candidates.archives.program import Program
from conformance.errors import CandidateError, UsageError
from conformance.model.activations import outputs, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import format_named

READERS = {".pt": "torchscript", ".pth": "torchscript", ".ts": "torchscript", ".pt2": "exported", ".onnx": "onnx"}


@dataclass(frozen=True)
class Archive:
    """An exported program in a file.

    A TorchScript archive is a program, which loading runs: give one that you trust. Of an exported program (`.pt2`) tensors are
    loaded and no other pickled object, and an ONNX model is data.

    Attributes:
        path: the file; its suffix says of which kind it is.
        inputs: which of a batch's arrays its inputs are, in order, where their names do not say: `input_ids`, `attention_mask`,
            `token_type_ids`.
        observed: whether interior activations are looked at.

    Example:
        >>> Archive("bert.onnx", inputs=("input_ids", "attention_mask")).inputs
        ('input_ids', 'attention_mask')
    """

    path: Path | str
    inputs: Sequence[str] = ()
    observed: bool = True

    def __post_init__(self) -> None:
        """Refuse what is of no known kind; raises `UsageError`."""
        if Path(self.path).suffix not in READERS:
            raise UsageError(
                f"{self.path}: no exported program that can be read; by their suffixes these can: {', '.join(READERS)}"
            )

    @property
    def name(self) -> str:
        """What results call it."""
        return Path(self.path).name

    @property
    def unobserved(self) -> "Archive":
        """The program as it is, its outputs alone."""
        return replace(self, observed=False)

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Why not, where it is of another network or format, or cannot run there."""
        program = self._opened(device)
        return program if isinstance(program, str) else reason_against(program.graph.constants.values(), architecture, dtype)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
        """A runner.

        Raises:
            CandidateError: it cannot be loaded, or its inputs cannot be distinguished.
            DependencyMissingError: what runs it is not installed.
        """
        program = self._opened(device)
        assert not isinstance(program, str)
        return _Runner(program, checkpoint, dtype, self.observed)

    def _opened(self, device: str) -> Program | str:
        path = Path(self.path)
        reader = import_module(f"conformance.candidates.archives.{READERS[path.suffix]}")
        return reader.opened(path, device, self.inputs)  # type: ignore[no-any-return]


class _Runner:
    """Runs a program and reports its activations."""

    def __init__(self, program: Program, checkpoint: Checkpoint, dtype: str, observed: bool) -> None:
        self._program, self._architecture, self._dtype, self._observed = program, checkpoint.architecture, dtype, observed
        parameters = recognised(program.graph.constants, checkpoint, format_named(dtype))
        locations = located(program.graph, parameters, checkpoint.architecture)
        self._labels = output_labels(program, locations, checkpoint.architecture)
        self._locations = settled(program, locations, checkpoint.architecture) if observed else locations

    def __call__(self, batch: Any) -> Iterator[tuple[str, Any]]:
        given = batch.filled()
        values = self._values([getattr(given, field) for field in self._program.fields])
        a, (size, length) = self._architecture, given.input_ids.shape
        own = self._outputs(values, size, length)
        inner = {n: in_format(v, self._dtype) for n, v in activations(self._locations, values, a, size, length)}
        found = {**inner, **own} if self._observed else {n: own[n] for n in outputs(a) if n in own}
        order = {name: i for i, name in enumerate(table(a))}
        return iter(sorted(found.items(), key=lambda item: order[item[0]]))

    def _values(self, arrays: Sequence[Any]) -> Mapping[str, Any]:
        if not self._observed:
            made = self._program.run(arrays)
            if len(made) != len(self._program.outputs):
                found = f"it returns {len(made)} tensors, and its graph has {len(self._program.outputs)}"
                raise CandidateError(f"{found}: what is put into a list or a mapping piece by piece cannot be followed")
            return dict(zip(self._program.outputs, made, strict=True))
        wanted = [value for candidates in self._locations.values() for value in candidates]
        return self._program.watch(arrays, list(dict.fromkeys([*wanted, *self._program.outputs])))

    def _outputs(self, values: Mapping[str, Any], size: int, length: int) -> dict[str, Any]:
        """What it returns, as far as that is known; `CandidateError` where none of it is."""
        rows, heads = table(self._architecture), self._architecture.num_attention_heads
        returned = {value: values[value] for value in self._program.outputs if value in values}
        own = {
            name: returned[value]
            for value, name in self._labels.items()
            if value in returned and tuple(returned[value].shape) == rows[name].shape(size, length, heads)
        }
        unknown = [v for value, v in returned.items() if value not in self._labels]
        located_names = {name for names in self._locations for name in names}
        own |= outputs_by_shape(unknown, located_names, self._architecture, size, length)
        if not own:
            shapes = ", ".join(str(tuple(v.shape)) for v in returned.values()) or "nothing"
            raise CandidateError(f"it returns {shapes}, and none of it is known for an output: a last hidden state or logits")
        return own
