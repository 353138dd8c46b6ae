"""Exported programs as candidates: a TorchScript archive, an exported program, an ONNX model.

PyTorch's module hooks do not run in exported programs. Their interior activations are values of their graphs, located by means of
the checkpoint's parameters (`conformance.candidates.archives.locate`). Observing these values may change how a runtime fuses
operations; therefore the unmodified program, of which only the outputs are observed, is also a candidate: `Archive.unobserved`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from conformance.candidates.archives.graph import MOVED, SAME, Program
from conformance.candidates.archives.locate import Locations, Names, located, reason_against, recognised
from conformance.candidates.lookup import READERS
from conformance.errors import CandidateError, UsageError
from conformance.model.activation import Activation
from conformance.model.activations import last_hidden, outputs, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.numerics.formats import format_named

Value = Any  # a tensor or an array


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


def in_format(value: Value, dtype: str) -> Value:
    """Return an interior value in the requested format; if the program computes it in another format, its errors reveal that."""
    if isinstance(value, torch.Tensor):
        return value.to(getattr(torch, dtype)) if value.is_floating_point() else value
    return value.astype(dtype) if value.dtype.kind == "f" else value


def activations(
    locations: Locations, values: Mapping[str, Value], architecture: Architecture, size: int, length: int
) -> Iterator[tuple[str, Value]]:
    """Yield every activation that has a value of the right shape; activations that are concatenated in one value are split."""
    rows, heads = table(architecture), architecture.num_attention_heads
    for names, candidates in locations.items():
        fitting = [values[c] for c in candidates if c in values and _is_of(names, values[c], rows, size, length, heads)]
        if fitting:
            yield from zip(names, _apart(fitting[0], len(names)), strict=True)


def _apart(value: Value, count: int) -> list[Value]:
    if count == 1:
        return [value]
    width = value.shape[-1] // count
    return [value[..., i * width : (i + 1) * width] for i in range(count)]


def settled(program: Program, locations: Locations, architecture: Architecture) -> Locations:
    """Return the locations with one value for each activation, determined by a run of the program.

    The run uses a batch size and a length that differ from each other, from the number of heads and from the hidden size, so that
    axes cannot be confused. If the program cannot be run at these sizes, `locations` is returned unchanged.
    """
    heads = architecture.num_attention_heads
    size, length = [n for n in (2, 3, 5, 7) if n not in (heads, architecture.hidden_size)][:2]
    ids = torch.ones((size, min(length, architecture.longest)), dtype=torch.int64)
    arrays = {"input_ids": torch.zeros_like(ids), "attention_mask": ids, "token_type_ids": torch.zeros_like(ids)}
    wanted = list(dict.fromkeys(value for candidates in locations.values() for value in candidates))
    try:
        values = program.watch([arrays[field].to(program.device) for field in program.fields], wanted)
    except Exception:  # a program for one size only may raise any exception
        return locations
    rows, (size, length) = table(architecture), ids.shape
    fitting = {n: [c for c in cs if c in values and _is_of(n, values[c], rows, size, length, heads)] for n, cs in locations.items()}
    return {names: (found[0],) for names, found in fitting.items() if found}


def _is_of(names: Names, value: Value, rows: Mapping[str, Activation], size: int, length: int, heads: int) -> bool:
    """Return whether a value has the shape of these activations, concatenated along their last axis."""
    row = rows[names[0]]
    shape, found = row.shape(size, length, heads), tuple(value.shape)
    wide = (*shape[:-1], shape[-1] * len(names)) if shape else ()
    same_for_all_rows = row.is_same_for_all_rows and found in ((1, *shape[1:]), shape[1:])
    return found == wide or (len(names) == 1 and same_for_all_rows)


def output_labels(program: Program, locations: Locations, architecture: Architecture) -> dict[str, str]:
    """Return the activation of each output value that can be identified.

    An output is identified by its label, or because it is a located value of the graph up to reshapes, transposes and casts.
    """
    rows = table(architecture)
    known = {value: names[0] for names, candidates in locations.items() if len(names) == 1 for value in candidates}
    labels = {}
    for value in program.outputs:
        label = program.labels.get(value, "")
        on_the_way = program.graph.before(value, (*MOVED, *SAME))
        found = label if label in rows else next((known[v] for v in on_the_way if v in known), "")
        if found:
            labels[value] = found
    return labels


def outputs_by_shape(
    unknown: Sequence[Value], located: Collection[str], architecture: Architecture, size: int, length: int
) -> dict[str, Value]:
    """Return outputs identified by shape alone: the last hidden state, and logits over tokens, if they were not located."""
    rows = table(architecture)
    names = [last_hidden(architecture)]
    names += ["cls.predictions.decoder"] if "masked_lm" in architecture.heads else []
    found: dict[str, Value] = {}
    for name in names:
        if name not in located and name in rows:
            alike = [v for v in unknown if _is_of((name,), v, rows, size, length, architecture.num_attention_heads)]
            found |= {name: alike[0]} if len(alike) == 1 else {}
    return found
