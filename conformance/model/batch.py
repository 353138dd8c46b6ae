"""A batch of token ids, with the mask, the token types and the labels that belong to it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from conformance.errors import UsageError

if TYPE_CHECKING:
    import torch

Ids = npt.NDArray[np.int64]

IGNORED_LABEL = -100  # Hugging Face's and PyTorch's ignore_index: a position that has no label.


def _integers(name: str, values: Any) -> Ids:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{name}: rows are of different lengths; pad them and mask the padding") from error
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{name} has {array.dtype} values, expected integers")
    return array.astype(np.int64)


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass, int64 NumPy arrays.

    Attributes:
        input_ids, token_type_ids, attention_mask: (B, S); the last two None where a check omits them.
        labels: (B, S), the masked-LM labels, -100 where there is none; or None.
        next_sentence_label: (B,), 0 = is next; or None.
        class_labels: (B,); or None.
        token_labels: (B, S), the classes of tokens, -100 where there is none; or None.
        start_positions, end_positions: (B,), where the span begins and where its last token stands, -100 where there is none; or
            None. Their softmax is over all S positions, and what stands at padding is undefined: in a batch in which a row with
            padding has one, they define no loss.
        choice_labels: (Q,), of each of the Q questions the right one of its choices, which are B / Q rows that stand one after the
            other, -100 where there is none; or None.

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
    token_labels: Ids | None = None
    start_positions: Ids | None = None
    end_positions: Ids | None = None
    choice_labels: Ids | None = None

    def __post_init__(self) -> None:
        """Refuse what is no batch; raises `UsageError` that says what was found and what was expected."""
        for name, array in self.arrays().items():
            if array.dtype != np.int64:
                raise UsageError(f"{name} is of {array.dtype}, expected int64")
            if name == "choice_labels":
                if array.ndim != 1 or not array.size or self.input_ids.shape[0] % array.size:
                    raise UsageError(f"choice_labels is of shape {array.shape}, expected (Q,), Q questions of B / Q rows each")
                continue
            per_row = name in ("next_sentence_label", "class_labels", "start_positions", "end_positions")
            expected = self.input_ids.shape[:1] if per_row else self.input_ids.shape
            if array.shape != expected or len(self.input_ids.shape) != 2:
                raise UsageError(f"{name} is of shape {array.shape}, expected {'(B,)' if per_row else '(B, S)'}; B, S = {expected}")
        if not self.input_ids.size:
            raise UsageError("the batch is empty")
        if self.attention_mask is not None and not np.isin(self.attention_mask, (0, 1)).all():
            raise UsageError("attention_mask has values other than 0 and 1")

    @property
    def size(self) -> int:
        """B, the number of rows."""
        return int(self.input_ids.shape[0])

    @property
    def length(self) -> int:
        """S, the number of tokens a row, padding included."""
        return int(self.input_ids.shape[1])

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """(B, S): which tokens are attended to; all of them where no mask is given."""
        if self.attention_mask is None:
            return np.ones(self.input_ids.shape, np.bool_)
        return np.asarray(self.attention_mask != 0)

    @property
    def types(self) -> Ids:
        """(B, S): the token types; zeros where none are given."""
        return np.zeros_like(self.input_ids) if self.token_type_ids is None else self.token_type_ids

    def cut(self, rows: slice, length: int | None = None) -> "Batch":
        """Some of its rows; of each, the first `length` tokens. Questions are labelled where no row is left out."""
        arrays = self.arrays()
        questions = arrays.pop("choice_labels", None)
        cut = Batch(**{k: v[rows, :length] if v.ndim == 2 else v[rows] for k, v in arrays.items()})
        return cut if questions is None or cut.size < self.size else replace(cut, choice_labels=questions)

    def arrays(self) -> dict[str, Ids]:
        """The arrays that are present, by name."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> "Batch":
        """From arrays, or nested lists, by name; `UsageError` for an unknown name or for what are no integers."""
        names = [f.name for f in fields(cls)]
        unknown = sorted(set(arrays) - set(names))
        if unknown or "input_ids" not in arrays:
            raise UsageError(f"a batch has input_ids and may have {', '.join(names[1:])}; found {', '.join(sorted(arrays))}")
        return cls(**{k: _integers(k, v) for k, v in arrays.items()})

    def on(self, device: str) -> "TorchBatch":
        """The batch as a candidate gets it: torch tensors on `device`."""
        import torch

        # A copy, so that a candidate that writes into its inputs cannot reach ours.
        tensors = {k: torch.tensor(v, device=device) for k, v in self.arrays().items()}
        return TorchBatch(self, **tensors)


class TorchBatch:
    """What a runner is called with: the arrays of a `Batch` as int64 torch tensors on the device under test.

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
    token_labels: "torch.Tensor | None"
    start_positions: "torch.Tensor | None"
    end_positions: "torch.Tensor | None"
    choice_labels: "torch.Tensor | None"

    def __init__(self, source: Batch | None = None, **tensors: "torch.Tensor") -> None:
        """Hold `tensors` under their names; those that are not given are None. Without a source there is no `numpy()`."""
        self._source = source
        for f in fields(Batch):
            setattr(self, f.name, tensors.get(f.name))

    def __getattr__(self, name: str) -> Any:
        """Only reached for names that a batch does not have."""
        raise AttributeError(f"a batch has no {name!r}; it has {', '.join(f.name for f in fields(Batch))}")

    def filled(self) -> "TorchBatch":
        """The same with what a check omits filled in: token types of 0, a mask of 1."""
        import torch

        filled = copy.copy(self)
        if filled.token_type_ids is None:
            filled.token_type_ids = torch.zeros_like(self.input_ids)
        if filled.attention_mask is None:
            filled.attention_mask = torch.ones_like(self.input_ids)
        return filled

    def numpy(self) -> Batch:
        """The same batch as int64 NumPy arrays."""
        if self._source is None:
            raise UsageError("a batch of tensors alone, as in tracing, has no arrays")
        return Batch.of({k: v.copy() for k, v in self._source.arrays().items()})
