"""The checks that a candidate is put through: the judgement of every activation, and the contract.

Most checks are the same judgement of another golden (its batches changed) or of another view of the candidate (part of what it
exposes). Imports nothing heavy: names and descriptions are wanted before any check is run.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from conformance.case import Case
from conformance.errors import UnknownNameError

if TYPE_CHECKING:
    from conformance.batch import Batch
    from conformance.goldens.golden import Golden
    from conformance.result import Result

View = Callable[[Any, "Golden"], Any]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what test ids and known failures call it.
        says: what it asks of a candidate.
        batches: the golden's batches, changed.
        view: the candidate, as it is looked at.
        every_golden: whether it is for all goldens, or for the small ones alone.
    """

    name: str
    says: str
    batches: "Callable[[Mapping[str, Batch]], Mapping[str, Batch]] | None" = None
    view: View | None = None
    every_golden: bool = False


def run(check: Check, implementation: Any, golden: "str | Golden", device: str, dtype: str, runs: int = 1) -> "Result":
    """The check's result; `implementation` and `golden` are names or objects. Nothing is raised."""
    from conformance.candidates.registry import name_of
    from conformance.ending import ending_of
    from conformance.goldens.own import open_golden
    from conformance.run import check as judged

    case = Case(name_of(implementation), golden if isinstance(golden, str) else golden.name, device, dtype, check.name)
    subject: list[Any] = []
    own = None if isinstance(golden, str) else golden
    ending = ending_of(lambda: subject.extend(_prepared(check, implementation, own or open_golden(case.golden))))
    if ending is not None:
        return replace(ending, case=case)
    result = judged(subject[0], subject[1], device, dtype, runs=runs)
    return replace(result, case=case)


def _prepared(check: Check, implementation: Any, golden: "Golden") -> tuple[Any, "Golden"]:
    from conformance.candidates.registry import as_implementation, load

    candidate = load(implementation) if isinstance(implementation, str) else as_implementation(implementation)
    changed = replace(golden, batches=check.batches(golden.batches), activations={}) if check.batches else golden
    return (check.view(candidate, changed) if check.view else candidate), changed


Stream = Iterator[tuple[str, Any]]
Look = Callable[[Any, Stream], Stream]


@dataclass(frozen=True)
class _Viewed:
    """A candidate whose stream is looked at on its way out; `looking(checkpoint, device, dtype)` makes the look."""

    candidate: Any
    looking: Callable[[Any, str, str], Look]

    def supports(self, architecture: Any, device: str, dtype: str) -> str | None:
        supports = getattr(self.candidate, "supports", None)
        return supports(architecture, device, dtype) if supports else None

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        from conformance.activations import table
        from conformance.candidates.stream import pairs

        look, runner = self.looking(checkpoint, device, dtype), self.candidate.prepare(checkpoint, device, dtype)
        order = {name: i for i, name in enumerate(table(checkpoint.architecture))}

        def run(batch: Any) -> Stream:
            return look(batch, pairs(runner(batch), order))

        return run


def _showing(wanted: Callable[[str, Any], bool]) -> View:
    """Only the activations that `wanted(name, architecture)` lets through."""
    return lambda candidate, _: _Viewed(candidate, lambda checkpoint, *_: _only(wanted, checkpoint.architecture))


def _only(wanted: Callable[[str, Any], bool], architecture: Any) -> Look:
    return lambda batch, stream: ((n, v) for n, v in stream if wanted(n, architecture))


def _is_output(name: str, architecture: Any) -> bool:
    from conformance.activations import outputs

    return name in outputs(architecture)


def _outputs(candidate: Any, golden: "Golden") -> Any:
    """The outputs alone; of a program that must be changed to be looked into, those of the program as it is."""
    return _showing(_is_output)(getattr(candidate, "unobserved", candidate), golden)


def _is_stage(name: str, architecture: Any) -> bool:
    """After the embedding, and after every layer."""
    from conformance.activations import outputs

    stages = ("embeddings.LayerNorm", "embeddings.sum")
    whole_layer = name.endswith("output.LayerNorm") and not name.endswith("attention.output.LayerNorm")
    return name in stages or whole_layer or name in outputs(architecture)


def _untouched(candidate: Any, golden: "Golden") -> Any:
    """Raise when a candidate has written into its inputs."""

    def look(batch: Any, stream: Stream) -> Stream:
        from conformance.errors import CandidateError

        given = {name: getattr(batch, name) for name in batch.numpy().arrays()}
        yield from stream
        for name, array in batch.numpy().arrays().items():
            if (given[name].cpu().numpy() != array).any():
                raise CandidateError(f"writes into its input {name}; a batch is shared, and what a candidate changes it copies")

    return _Viewed(candidate, lambda *_: look)


def _registered(candidate: Any, golden: "Golden") -> Any:
    """The outputs, once the module is seen to hold no tensor that is not registered."""
    from conformance.ending import Unsupported

    if not hasattr(candidate, "module"):
        raise Unsupported("it has no module() whose tensors could be looked at")

    def looking(checkpoint: Any, device: str, dtype: str) -> Look:
        from conformance.checks.state import require_registered

        require_registered(candidate.module(checkpoint, device, dtype))
        return _only(_is_output, checkpoint.architecture)

    return _Viewed(candidate, looking)


def _moments(candidate: Any, golden: "Golden") -> Any:
    """Raise when a mean or a variance is off."""

    def looking(checkpoint: Any, device: str, dtype: str) -> Look:
        from conformance.checks.moments import watched

        return watched(checkpoint, device, dtype)

    return _Viewed(candidate, looking)


def _without_optional(batches: "Mapping[str, Batch]") -> "dict[str, Batch]":
    """Without token types, without a mask, without either."""
    whole = _largest(batches)
    return {
        "no token types": replace(whole, token_type_ids=None),
        "no mask": replace(whole, attention_mask=None),
        "ids alone": replace(whole, attention_mask=None, token_type_ids=None),
    }


def _largest(batches: "Mapping[str, Batch]") -> "Batch":
    return max(batches.values(), key=lambda batch: batch.input_ids.size)


def _one_masked_row(batches: "Mapping[str, Batch]") -> "dict[str, Batch]":
    """A row whose mask is all zeros: undefined itself, and no neighbour's business."""
    from conformance.batch import IGNORED_LABEL, Batch

    batch = _largest(batches)
    if batch.size == 1:
        batch = Batch.of({k: v.repeat(2, 0) for k, v in batch.arrays().items()})
    mask = batch.mask.astype("int64")
    mask[1] = 0
    changed = {"attention_mask": mask}
    for name in ("labels", "next_sentence_label", "class_labels"):
        labels = getattr(batch, name)
        if labels is not None:
            changed[name] = labels.copy()
            changed[name][1] = IGNORED_LABEL
    return {"a masked row": replace(batch, **changed)}


def _row_by_row(batches: "Mapping[str, Batch]") -> "dict[str, Batch]":
    from conformance.batch import Batch

    whole = _largest(batches)
    rows = {f"row-{i}": Batch.of({k: v[i : i + 1] for k, v in whole.arrays().items()}) for i in range(whole.size)}
    return {"all": whole, **rows}


def _again(batches: "Mapping[str, Batch]") -> "dict[str, Batch]":
    """A batch, a shorter one, and the first once more."""
    from conformance.batch import Batch

    first = _largest(batches)
    shorter = {k: v[:, : (first.length + 1) // 2] if v.ndim == 2 else v for k, v in first.arrays().items() if "label" not in k}
    return {"first": first, "shorter": Batch.of(shorter), "first again": first}


CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check("values", "every activation that is exposed is what a correct BERT could have made", every_golden=True),
        Check("outputs", "the outputs alone, judged from the token ids: the same output after copying the weights",
              view=_outputs, every_golden=True),
        Check("stages", "the values after the embedding and after every layer, each judged from the one before",
              view=_showing(_is_stage)),
        Check("moments", "mean and variance of the embedding and of every residual, as LayerNorm's theory has them",
              view=_moments),
        Check("omitted-inputs", "without token types they are 0, without a mask everything is attended to",
              batches=_without_optional),
        Check("masked-row", "a row whose mask is all zeros neither crashes nor disturbs its neighbours",
              batches=_one_masked_row),
        Check("row-by-row", "all rows, and each by itself in a batch of one", batches=_row_by_row),
        Check("called-again", "a second call, with other lengths between, gives what the first gave", batches=_again),
        Check("inputs-untouched", "the inputs are as they were after the call", view=_untouched),
        Check("registered-tensors", "the module holds no tensor that is neither parameter nor buffer", view=_registered),
    )
}  # fmt: skip

SMALL_GOLDENS = ("tiny", "sinusoidal")


def named(name: str) -> Check:
    """The check of that name; `UnknownNameError` with those that there are."""
    if name not in CHECKS:
        raise UnknownNameError(f"no check {name!r}; there are {', '.join(CHECKS)}")
    return CHECKS[name]
