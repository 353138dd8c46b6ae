"""A batch of token ids, with its attention mask, token types and labels."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from conformance.errors import UsageError
from conformance.numerics.formats import Array, Mask, format_named

if TYPE_CHECKING:
    import torch

Ids = npt.NDArray[np.int64]

IGNORED_LABEL = -100  # Hugging Face's and PyTorch's ignore_index, for positions without a label


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{name}: rows are of different lengths; pad them and mask the padding") from error


def _integers(name: str, values: Any) -> Ids:
    array = _array(name, values)
    if array.dtype == np.bool_ and name in MASKS:
        return array.astype(np.int64)
    if array.dtype == np.object_ or (array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any()):
        raise UsageError(f"{name} has the value {_no_integer(array)!r:.60}, expected integers of at most 64 bits")
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{name} has {array.dtype} values, expected integers")
    return array.astype(np.int64)


def _no_integer(array: npt.NDArray[Any]) -> Any:
    """Return the first element of an array that is no integer, else the largest in magnitude."""
    elements = array.ravel().tolist()
    others = [value for value in elements if not isinstance(value, int)]
    return others[0] if others else max(elements, key=abs)


def _numbers(name: str, values: Any) -> Array:
    array = _array(name, values)
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{name} has {array.dtype} values, expected numbers")
    return array.astype(np.float64)


MASKS = ("attention_mask", "encoder_attention_mask")  # integer arrays that may be given as booleans
FLOATS = ("class_targets", "encoder_hidden_states")  # floating-point arrays; all others are integer arrays

# The axes of each array that is not (B, S): B rows, S tokens, Q questions of B / Q rows each, T encoder states of width H,
# C labels.
_AXES = {
    "attention_mask": "BS or BSS",
    "next_sentence_label": "B",
    "class_labels": "B",
    "class_targets": "BC",
    "start_positions": "B",
    "end_positions": "B",
    "choice_labels": "Q",
    "encoder_hidden_states": "BTH",
    "encoder_attention_mask": "BT",
}


def _axes(name: str, array: npt.NDArray[Any]) -> str:
    return next(axes for axes in _AXES.get(name, "BS").split(" or ") if len(axes) == array.ndim)


def _taken(arrays: Mapping[str, Any], rows: slice | Ids, positions: slice | Ids) -> dict[str, Any]:
    """Return the arrays of these rows, at these positions of each axis over tokens."""
    along = {"S": positions}
    return {k: v[(rows, *(along.get(axis, slice(None)) for axis in _axes(k, v)[1:]))] for k, v in arrays.items()}


@dataclass(frozen=True)
class Batch:
    """The inputs of one forward pass, as NumPy arrays of int64 (float64 where stated).

    B is the number of rows, S the number of tokens per row. Every array except `input_ids` may be None.

    Attributes:
        input_ids, token_type_ids, attention_mask: (B, S). The mask may be (B, S, S): for each query, the keys that it may attend
            to. Some checks omit token types and mask.
        labels: (B, S), the masked-LM labels, -100 for tokens without a label.
        next_sentence_label: (B,), 0 if the second sentence follows the first.
        class_labels: (B,), the classes of the rows.
        class_targets: (B, C), float64, used instead of `class_labels`: the targets of a regression, or 1 or 0 for each of several
            labels that are not mutually exclusive.
        position_ids: (B, S); None means consecutive positions.
        encoder_hidden_states: (B, T, H), float64, the states that a decoder with cross-attention attends to.
        encoder_attention_mask: (B, T), which of the encoder states may be attended to; None means all.
        token_labels: (B, S), the classes of the tokens, -100 for tokens without a label.
        start_positions, end_positions: (B,), the positions of the first and last token of the span, -100 for rows without a label.
            Their softmax is over all S positions, and logits at padding are undefined, so the loss of a batch is undefined if a
            labelled row has padding.
        choice_labels: (Q,), the index of the correct choice of each of Q questions, -100 for questions without a label. The choices
            of a question are B / Q consecutive rows.

    Example:
        >>> batch = Batch(np.array([[7, 8, 0], [5, 6, 9]]), attention_mask=np.array([[1, 1, 0], [1, 1, 1]]))
        >>> batch.size, batch.length
        (2, 3)
        >>> batch.types.tolist()
        [[0, 0, 0], [0, 0, 0]]
    """

    input_ids: Ids
    token_type_ids: Ids | None = None
    attention_mask: Ids | None = None
    labels: Ids | None = None
    next_sentence_label: Ids | None = None
    class_labels: Ids | None = None
    position_ids: Ids | None = None
    encoder_hidden_states: Array | None = None
    encoder_attention_mask: Ids | None = None
    token_labels: Ids | None = None
    start_positions: Ids | None = None
    end_positions: Ids | None = None
    choice_labels: Ids | None = None
    class_targets: Array | None = None

    def __post_init__(self) -> None:
        """Validate the arrays; raises `UsageError` that states what was found and what was expected."""
        for name, array in self.arrays().items():
            dtype = np.float64 if name in FLOATS else np.int64
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                found = f"of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
                raise UsageError(
                    f"{name} is {found}, expected a NumPy array of {np.dtype(dtype)}; Batch.of converts arrays and lists"
                )
            axes = _AXES.get(name, "BS")
            if self.input_ids.ndim != 2 or not any(self._is_of(array, each) for each in axes.split(" or ")):
                expected = " or ".join(f"({', '.join(each)}{',' * (len(each) == 1)})" for each in axes.split(" or "))
                raise UsageError(f"{name} is of shape {array.shape}, expected {expected}; B, S = {self.input_ids.shape}")
        if not self.input_ids.size:
            raise UsageError("the batch is empty")
        for name in MASKS:
            mask = getattr(self, name)
            if mask is not None and not np.isin(mask, (0, 1)).all():
                raise UsageError(f"{name} has values other than 0 and 1")
        if self.encoder_attention_mask is not None and self.encoder_hidden_states is None:
            raise UsageError("there is an encoder_attention_mask without encoder_hidden_states; give both or neither")
        if (self.keys & ~self.mask[:, None, :]).any():
            raise UsageError("attention_mask lets a query attend to a token that attends to none; what that computes is undefined")
        if self.class_targets is not None and not np.isfinite(self.class_targets).all():
            raise UsageError("class_targets has values that are not finite; every row needs a target for each label")
        self._require_states()

    def _require_states(self) -> None:
        """Raise `UsageError` if encoder states are not finite, or if a row has no encoder state to attend to."""
        if self.encoder_hidden_states is None:
            return
        if not np.isfinite(self.encoder_hidden_states).all():
            first = tuple(np.argwhere(~np.isfinite(self.encoder_hidden_states))[0].tolist())
            raise UsageError(f"encoder_hidden_states{list(first)} is {self.encoder_hidden_states[first]}, expected finite numbers")
        without = np.flatnonzero(~self.states_mask.any(1))
        if without.size:
            raise UsageError(
                f"row {without[0]} has no state to attend to, by encoder_hidden_states and encoder_attention_mask; what "
                "cross-attention makes of that is undefined"
            )

    def _questions(self, labels: npt.NDArray[Any]) -> int:
        """Return the number of questions, given the labels of the choices; -1 if the rows cannot be split evenly among them."""
        count = labels.size
        return count if count and self.input_ids.shape[0] % count == 0 else -1

    def _is_of(self, array: npt.NDArray[Any], axes: str) -> bool:
        """Return whether an array has the given axes, where C may have any length."""
        states = self.encoder_hidden_states
        sizes = {"B": self.input_ids.shape[0], "S": self.input_ids.shape[1], "Q": self._questions(array)}
        sizes["C"] = array.shape[-1] if array.ndim else -1
        if states is not None and states.ndim == 3:
            sizes |= {"T": states.shape[1], "H": states.shape[2]}
        return array.shape == tuple(sizes.get(axis, -1) for axis in axes)

    @property
    def size(self) -> int:
        """The number B of rows."""
        return int(self.input_ids.shape[0])

    @property
    def length(self) -> int:
        """The number S of tokens per row, including padding."""
        return int(self.input_ids.shape[1])

    @property
    def mask(self) -> Mask:
        """Boolean array (B, S) of the tokens that are not padding; all True without a mask.

        With a (B, S, S) mask, a token is not padding if it attends to any token.
        """
        if self.attention_mask is None:
            return np.ones(self.input_ids.shape, np.bool_)
        real = self.attention_mask != 0
        return np.asarray(real if real.ndim == 2 else real.any(-1))

    @property
    def keys(self) -> Mask:
        """Boolean array (B, Q, S) of the keys that the mask allows, where Q = 1 if they are the same for all queries."""
        if self.attention_mask is not None and self.attention_mask.ndim == 3:
            return np.asarray(self.attention_mask != 0)
        return self.mask[:, None, :]

    @property
    def states_length(self) -> int:
        """The number T of encoder states per row; 0 if there are none."""
        return 0 if self.encoder_hidden_states is None else int(self.encoder_hidden_states.shape[1])

    @property
    def states_mask(self) -> Mask:
        """Boolean array (B, T) of the encoder states that may be attended to; all True without a mask."""
        if self.encoder_attention_mask is None:
            return np.ones((self.size, self.states_length), np.bool_)
        return np.asarray(self.encoder_attention_mask != 0)

    @property
    def types(self) -> Ids:
        """The token types, (B, S); zeros if none are given."""
        return np.zeros_like(self.input_ids) if self.token_type_ids is None else self.token_type_ids

    def cut(self, rows: slice | Ids, length: int | None = None) -> "Batch":
        """Return the batch of the selected rows (a slice or row numbers), with the first `length` tokens of each.

        `choice_labels` is kept only if no row is left out.
        """
        arrays = self.arrays()
        questions = arrays.pop("choice_labels", None)
        cut = _taken(arrays, rows, slice(length))
        return Batch(**cut, choice_labels=questions if len(cut["input_ids"]) == self.size else None)

    def filled(self) -> "Batch":
        """Return the batch with missing token types set to 0 and a missing mask set to 1."""
        mask = np.ones_like(self.input_ids) if self.attention_mask is None else self.attention_mask
        return replace(self, token_type_ids=self.types, attention_mask=mask)

    def held_in(self, dtype: str) -> "Batch":
        """Return the batch as a candidate of `dtype` reads it: floating-point arrays rounded to that format, held in float64."""
        rounded: dict[str, Any] = {k: format_named(dtype).round(v) for k, v in self.arrays().items() if k in FLOATS}
        return replace(self, **rounded) if rounded else self

    def at(self, positions: Ids) -> "Batch":
        """Return the batch with the tokens of each row taken at the given positions, in this order; positions may repeat."""
        return Batch(**_taken(self.arrays(), slice(None), positions))

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that are present, by name."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> "Batch":
        """Return a batch from arrays or nested lists by name; None stands for an array that is not given.

        Raises:
            UsageError: a name is unknown, `input_ids` is missing, or values are not integers (booleans for masks, numbers for
                floating-point arrays).
        """
        arrays = {name: values for name, values in arrays.items() if values is not None}
        names = [f.name for f in fields(cls)]
        unknown = sorted(set(arrays) - set(names))
        if unknown or "input_ids" not in arrays:
            raise UsageError(f"a batch has input_ids and may have {', '.join(names[1:])}; found {', '.join(sorted(arrays))}")
        found: dict[str, Any] = {k: (_numbers if k in FLOATS else _integers)(k, v) for k, v in arrays.items()}
        return cls(**found)

    def on(self, device: str) -> "TorchBatch":
        """Return the batch as torch tensors on `device`, which is the form that a candidate receives."""
        import torch

        # Copy the arrays, so that a candidate that writes into its inputs does not change them.
        tensors = {k: torch.tensor(v, device=device) for k, v in self.arrays().items()}
        return TorchBatch(self, **tensors)


class TorchBatch:
    """The argument of a runner: the arrays of a `Batch` as torch tensors (int64 or float64) on the device under test.

    Example:
        >>> Batch(np.array([[7, 8]])).on("cpu").input_ids
        tensor([[7, 8]])
    """

    input_ids: "torch.Tensor"
    token_type_ids: "torch.Tensor | None"
    attention_mask: "torch.Tensor | None"
    labels: "torch.Tensor | None"
    next_sentence_label: "torch.Tensor | None"
    class_labels: "torch.Tensor | None"
    position_ids: "torch.Tensor | None"
    encoder_hidden_states: "torch.Tensor | None"
    encoder_attention_mask: "torch.Tensor | None"
    token_labels: "torch.Tensor | None"
    start_positions: "torch.Tensor | None"
    end_positions: "torch.Tensor | None"
    choice_labels: "torch.Tensor | None"
    class_targets: "torch.Tensor | None"

    def __init__(self, source: Batch | None = None, **tensors: "torch.Tensor") -> None:
        """Initialize the batch.

        Args:
            source: the NumPy batch that `numpy` returns; without it, `numpy` raises `UsageError`.
            tensors: the tensors by name; arrays that are not given are None.
        """
        self._source = source
        for f in fields(Batch):
            setattr(self, f.name, tensors.get(f.name))

    def __getattr__(self, name: str) -> Any:
        """Raise an `AttributeError` that lists the fields; Python calls this only for names that do not exist."""
        raise AttributeError(f"a batch has no {name!r}; it has {', '.join(f.name for f in fields(Batch))}")

    def filled(self) -> "TorchBatch":
        """Return the batch with missing token types set to 0 and a missing mask set to 1, also in `numpy()`."""
        import torch

        filled = copy.copy(self)
        filled._source = self._source and self._source.filled()
        if filled.token_type_ids is None:
            filled.token_type_ids = torch.zeros_like(self.input_ids)
        if filled.attention_mask is None:
            filled.attention_mask = torch.ones_like(self.input_ids)
        return filled

    def numpy(self) -> Batch:
        """Return the batch as NumPy arrays, which are copies.

        Raises:
            UsageError: the batch was made of tensors alone, as in tracing.
        """
        if self._source is None:
            raise UsageError("a batch of tensors alone, as in tracing, has no arrays")
        return Batch.of({k: v.copy() for k, v in self._source.arrays().items()})
