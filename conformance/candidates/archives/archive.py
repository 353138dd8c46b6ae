"""Exported programs as candidates: a TorchScript archive, an exported program, an ONNX model.

PyTorch's module hooks do not run in exported programs. Their interior activations are values of their graphs, located by means of
the checkpoint's parameters (`conformance.candidates.archives.locate`). Observing these values may change how a runtime fuses
operations; therefore the unmodified program, of which only the outputs are observed, is also a candidate: `Archive.unobserved`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.candidates.archives.locate import located
from conformance.candidates.archives.observed import activations, in_format, output_labels, outputs_by_shape, settled
from conformance.candidates.archives.program import Program
from conformance.candidates.archives.program_parameters import reason_against, recognised
from conformance.candidates.lookup import READERS
from conformance.errors import CandidateError, UsageError
from conformance.model.activations import outputs, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import format_named


@dataclass(frozen=True)
class Archive:
    """An exported program in a file.

    Loading a TorchScript archive runs code in it: load only archives that you trust. Of an exported program (`.pt2`), tensors are
    the only pickled objects that are loaded, and an ONNX model contains data only.

    Attributes:
        path: the file; its suffix determines the kind of program.
        inputs: the batch's array for each input of the program, in order (`input_ids`, `attention_mask`, `token_type_ids`); needed
            if the names of the inputs are not recognized.
        observed: whether interior activations are observed.

    Raises:
        UsageError: the suffix is not that of a supported kind.

    Example:
        >>> Archive("bert.onnx", inputs=("input_ids", "attention_mask")).inputs
        ('input_ids', 'attention_mask')
    """

    path: Path | str
    inputs: Sequence[str] = ()
    observed: bool = True

    def __post_init__(self) -> None:
        """Raise `UsageError` if the suffix of the file is not that of a supported kind."""
        if Path(self.path).suffix not in READERS:
            raise UsageError(
                f"{self.path}: no exported program that can be read; by their suffixes these can: {', '.join(READERS)}"
            )

    @property
    def name(self) -> str:
        """The name used in results."""
        return Path(self.path).name

    @property
    def unobserved(self) -> "Archive":
        """The unmodified program, of which only the outputs are observed."""
        return replace(self, observed=False)

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return the reason why a case is not supported: another network, format or device; else None."""
        program = self._opened(device)
        return program if isinstance(program, str) else reason_against(program.graph.constants.values(), architecture, dtype)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[Any], Iterator[tuple[str, Any]]]:
        """Return a runner of the program.

        Raises:
            CandidateError: the program cannot be loaded, or its inputs cannot be distinguished.
            DependencyMissingError: the package that runs such a program is not installed.
        """
        program = self._opened(device)
        assert not isinstance(program, str)
        return _Runner(program, checkpoint, dtype, self.observed)

    def _opened(self, device: str) -> Program | str:
        path = Path(self.path)
        reader = import_module(f"conformance.candidates.archives.{READERS[path.suffix]}")
        return reader.opened(path, device, self.inputs)  # type: ignore[no-any-return]


class _Runner:
    """A runner of a program."""

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
        """Return the program's outputs that are identified as activations; raise `CandidateError` if there are none."""
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
