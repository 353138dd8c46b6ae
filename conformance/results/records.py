"""The records of a run: a header, one record for each check and each activation, and a footer. All reports are made from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from conformance.judge import visible_element
from conformance.judge.error_distribution import ErrorDistribution
from conformance.judge.evidence import Error
from conformance.results.case import Case
from conformance.results.deferred_import import deferred
from conformance.results.outcomes import Outcome

SCHEMA_VERSION = 2


class _Record(msgspec.Struct, frozen=True, gc=False, tag_field="kind", rename={"global_error": "global"}):
    """A line of the results file; the field `kind` identifies the type of record."""


class GoldenRecord(msgspec.Struct, frozen=True, gc=False):
    """A golden used in a run; results on different versions or digests must not be compared silently.

    Attributes:
        unconfirmed: a sentence on the numbers of a checkpoint that its parameters do not confirm; empty for a stored golden.
    """

    version: int
    stored_digest: str
    weights_digest: str
    source: str
    unconfirmed: str = ""

    @property
    def identity(self) -> tuple[int, str, str]:
        """The values that identify a golden, independently of where it comes from."""
        return self.version, self.stored_digest, self.weights_digest


class ImplementationRecord(msgspec.Struct, frozen=True, gc=False):
    """The version of a candidate: the distribution that registers it, and the `module:name` under which it is registered."""

    distribution: str
    version: str
    origin: str


class FunctionRecord(msgspec.Struct, frozen=True, gc=False):
    """The largest measured errors of a library function, relative to its scale (`numerics.functions`) and in ULP."""

    absolute: float | None
    ulp: float | None


class MachineRecord(msgspec.Struct, frozen=True, gc=False):
    """The float32 arithmetic of torch on the machine, measured before anything was judged.

    Attributes:
        instruction_set: instruction set for which ATen dispatches on the CPU.
        functions: errors of library functions.
        products: effective bits of a matrix product, by the class of its shape.
        settings: settings that affect arithmetic: matmul precision, TF32, oneDNN's mode, flush-to-zero, threads.
        exceeding: a sentence for each function that is less accurate than any known implementation.
    """

    instruction_set: str
    functions: dict[str, FunctionRecord]
    products: dict[str, float | None]
    settings: dict[str, str]
    exceeding: list[str] = []


class Header(_Record, frozen=True, gc=False, tag="header"):
    """The versions, machine and settings of a run.

    Empty and 0 mean that a field is not known.

    Attributes:
        run: identifier of a run, shared by all files of its results.
        started: start time in ISO 8601.
        implementations: the registered candidates by name; the version of an unregistered object is not known.
        transformers, onnxruntime: versions; null if not installed.
        cases: number of checks that were to be run.
        settings: what else decides a verdict, each in a word or a digest: required activations, known failures, the code of each
            candidate, the architecture of each custom golden.
        limits: the limits of candidates.
    """

    schema: int
    suite: str
    python: str
    torch: str
    transformers: str | None
    platform: str
    processor: str
    gpu: str | None
    threads: int
    goldens: dict[str, GoldenRecord]
    checkpoint: str | None
    false_alarm: float
    seed: int | None = 0
    examples: int = 0
    run: str = ""
    started: str = ""
    implementations: dict[str, ImplementationRecord] = {}
    numpy: str = ""
    onnxruntime: str | None = ""
    cases: int = 0
    machine: MachineRecord | None = None
    depth: str = "full"
    settings: dict[str, str] = {}
    limits: dict[str, str] = {}


class FaultRecord(msgspec.Struct, frozen=True, gc=False):
    """A fault that explains an error.

    If the fault is a wrong number, `estimate`, `deviation` and `right` are its estimated value, the standard deviation of the
    estimate, and the correct value. `kind` is the kind of the step that the fault acts on.
    `is_description` is true of what describes the result and names no mistake.
    """

    name: str
    step: str
    amplitude: float
    z: float
    parameter: str | None
    estimate: float | None
    deviation: float | None
    right: float | None = None
    kind: str = ""
    is_description: bool = False


class ActivationRecord(_Record, frozen=True, gc=False, tag="activation"):
    """The verdict on one activation for one batch.

    Attributes:
        local, global: errors, in sigma and absolute; null in sigma at exact activations.
        faults: the set of faults that together explain the error best.
        alternatives: sets of faults that cannot be distinguished from `faults` on this batch.
        anatomy: sentences on an error that no fault explains; else closed forms of the faults' numbers, as `0.25 = 1/√16`.
        backward_of: for a gradient of an activation, the forward step whose backward pass yields it; otherwise empty.
        spread: distribution of the local error, whose strips and tokens are stored for the worst failures only.
        rests_on: what the judgement rests on: `every element` or, of large activations, `a lower bound of sigma` or
            `projections` (`judge.gate`); empty if there is none.
    """

    implementation: str
    golden: str
    device: str
    dtype: str
    batch: str
    activation: str
    outcome: Outcome
    role: str | None
    local: Error | None
    global_error: Error | None
    faults: list[FaultRecord]
    arithmetic: str | None
    limits: dict[str, float]
    excess: float | None
    reason: str
    alternatives: list[list[FaultRecord]] = []
    anatomy: list[str] = []
    spread: ErrorDistribution | None = None
    backward_of: str = ""
    rests_on: str = ""


class Sensitivity(msgspec.Struct, frozen=True, gc=False):
    """How well one fault would have been detected, at its weakest place and at how many of its possible places.

    For a fault that is a wrong number, `right` is the correct value, and `smallest` is the wrong value nearest to it that would
    have been detected at every place; None if the usual wrong value would not. `at` is the place where it is least visible.
    """

    fault: str
    weakest: str
    expected_z: float
    separable: int
    places: int
    parameter: str | None = None
    right: float | None = None
    smallest: float | None = None
    at: str = ""


class PlaceRecord(msgspec.Struct, frozen=True, gc=False):
    """One element that shows a failure: the value found, the expected value (or that of the other run), and the allowed difference.

    `element` is its index in the first run; values that are not finite are null.
    """

    activation: str
    element: tuple[int, ...]
    found: float | None
    expected: float | None
    allowed: float


class CounterexampleRecord(msgspec.Struct, frozen=True, gc=False):
    """The smallest failing example, with everything needed to run it again.

    Attributes:
        network: name of a golden, or `checkpoint:DIR`.
        words: tokens of the batch, if there is a tokenizer.
        runs: inputs of the runs, in order.
        script: Python script that shows the failure without this file.
        origin: `module:name` of the candidate, if known.
    """

    network: str
    batch: dict[str, list[Any]]
    variation: dict[str, Any]
    runs: list[dict[str, list[Any]]]
    script: str
    origin: str = ""
    words: list[list[str]] | None = None
    place: PlaceRecord | None = None


class CheckRecord(_Record, frozen=True, gc=False, tag="check"):
    """One check of one candidate on one golden.

    Attributes:
        judged: number of judged activations, out of `activations`.
        tried: number of examples, for a check that generates its batches.
        worst: largest ratio of an error to its limit among the examples that pass.
        sizes: the largest sizes of the judged batches, each as rows and tokens per row.
        require: patterns of activations that had to be observed.
        runs: number of checks of the run, among which the false-alarm probability is shared.
        examples: number of examples that each search was to try, among which that of the check is shared.
        candidate_seconds: the part of `seconds` spent waiting for the candidate; null if it was not measured.
        judge_seconds: the rest of `seconds`; null if it was not measured.
        note: what of the returned value was not compared, and what of a mapping no value confirms.
    """

    implementation: str
    golden: str
    device: str
    dtype: str
    check: str
    outcome: Outcome
    reason: str
    seconds: float
    declared: bool
    executed: bool
    exit_code: int
    judged: int
    activations: int
    median_rms: float | None
    excludes: list[Sensitivity]
    tried: int = 0
    worst: float | None = None
    counterexample: CounterexampleRecord | None = None
    require: tuple[str, ...] = ()
    candidate_seconds: float | None = None
    judge_seconds: float | None = None
    runs: int = 1
    examples: int = 0
    note: str = ""
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def case(self) -> Case:
        """The case that the record describes."""
        return Case(self.implementation, self.golden, self.device, self.dtype, self.check)


class Footer(_Record, frozen=True, gc=False, tag="footer"):
    """The numbers of checks by outcome, and the exit code."""

    declared: int
    ran: int
    outcomes: dict[str, int]
    exit_code: int


Record = Header | ActivationRecord | CheckRecord | Footer


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line of a results file, without its digest."""
    return msgspec.json.schema(Record)


@dataclass(frozen=True)
class CaseRecords:
    """The record of a check, and those of the activations judged for it."""

    check: CheckRecord
    activations: tuple[ActivationRecord, ...]


_SCREENED = "screen: each step was judged by its RMS and largest error alone; names and the global error were not looked for."
_PROJECTED = (
    "{count} of {judged} activations rest on projections: their RMS and largest error are those of a sample of tokens, and "
    "elsewhere a single wrong element is seen from about {sigma:.0f} times the mean sigma of 32 features on."
)


@dataclass(frozen=True)
class Note:
    """A sentence on results in addition to the verdicts: on several of them, on the machine, or on the depth of the judgement."""

    kind: Literal["contradiction", "missing", "duplicate", "machine", "depth", "projected"]
    text: str

    @property
    def grave(self) -> bool:
        """Whether the remark prevents the results from being a success."""
        return self.kind in ("contradiction", "missing")

    def __str__(self) -> str:
        """Return the remark for reports."""
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Results:
    """The results of one run, or of several merged runs; a footer that is None must be computed from the cases."""

    headers: tuple[Header, ...]
    cases: tuple[CaseRecords, ...]
    footer: Footer | None
    notes: tuple[Note, ...] = ()

    @property
    def header(self) -> Header | None:
        """The header of the first run, or None if there is none."""
        return self.headers[0] if self.headers else None

    _repr_html_ = deferred("report.representations:displayed")

    @property
    def remarks(self) -> tuple[Note, ...]:
        """The notes, followed by remarks on the depth of judgement and on the machines, each once."""
        machines = (header.machine for header in self.headers if header.machine)
        sentences = dict.fromkeys(sentence for machine in machines for sentence in machine.exceeding)
        return (*self.notes, *self._remarks_on_depth(), *(Note("machine", sentence) for sentence in sentences))

    def _remarks_on_depth(self) -> Iterator[Note]:
        if any(header.depth == "screen" for header in self.headers):
            yield Note("depth", _SCREENED)
        if count := sum(a.rests_on == "projections" for a in self.activations):
            judged = sum(bool(a.rests_on) for a in self.activations)
            yield Note("depth", _PROJECTED.format(count=count, judged=judged, sigma=visible_element()))

    @property
    def sound(self) -> bool:
        """Whether the results are complete and free of contradictions."""
        return not any(note.grave for note in self.notes)

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        """The records of all checks."""
        return tuple(case.check for case in self.cases)

    @property
    def activations(self) -> tuple[ActivationRecord, ...]:
        """The records of all activations."""
        return tuple(a for case in self.cases for a in case.activations)
