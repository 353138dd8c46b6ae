"""The records of a run: a header, one for each check and each activation, a footer. Every report is made from them."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from conformance.names import RENAMED_FAULTS
from conformance.results.late import late
from conformance.results.outcomes import Outcome

SCHEMA_VERSION = 1


class _Record(msgspec.Struct, frozen=True, gc=False, tag_field="kind", rename={"overall": "global"}):
    """A line of the file; `kind` says which."""


class GoldenRecord(msgspec.Struct, frozen=True, gc=False):
    """A golden that is run on: results on different versions or digests are not compared silently.

    `unconfirmed` is a sentence on the numbers of a checkpoint that its parameters do not show; of a golden that is stored, empty.
    """

    version: int
    stored_digest: str
    weights_digest: str
    source: str
    unconfirmed: str = ""

    @property
    def identity(self) -> tuple[int, str, str]:
        """By which it is the same golden, wherever it comes from."""
        return self.version, self.stored_digest, self.weights_digest


class ImplementationRecord(msgspec.Struct, frozen=True, gc=False):
    """Which version of a candidate was run: the distribution that registers it, and the `module:name` that it is registered as."""

    distribution: str
    version: str
    origin: str


class FunctionRecord(msgspec.Struct, frozen=True, gc=False):
    """The largest errors of a library function that were measured: over its scale (`numerics.functions`), and in ULP."""

    absolute: float | None
    ulp: float | None


class MachineRecord(msgspec.Struct, frozen=True, gc=False):
    """The float32 arithmetic of torch on the machine, measured before anything was judged.

    Attributes:
        instruction_set: what ATen dispatches on the CPU.
        functions: the errors of library functions.
        products: the effective bits of a matrix product, by the class of its shape.
        settings: what changes arithmetic: matmul precision, TF32, oneDNN's mode, flush-to-zero, threads.
        exceeding: a sentence a function that is less accurate than any known implementation.
    """

    instruction_set: str
    functions: dict[str, FunctionRecord]
    products: dict[str, float | None]
    settings: dict[str, str]
    exceeding: list[str] = []


class Header(_Record, frozen=True, gc=False, tag="header"):
    """What ran, where; `shard` is which share of the run, and `run` is the same in all of its shares; `started` is ISO 8601.

    `implementations` are the candidates that are registered, by name; of an object that is not, no version is known.
    `transformers` and `onnxruntime` are null where they are not installed; `cases` is how many checks this share of the run was to
    make. What is empty or 0 is not said, as by earlier versions of the suite.
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
    shard: str = "1/1"
    run: str = ""
    started: str = ""
    implementations: dict[str, ImplementationRecord] = {}
    numpy: str = ""
    onnxruntime: str | None = ""
    cases: int = 0
    machine: MachineRecord | None = None
    depth: str = "full"


class ErrorRecord(msgspec.Struct, frozen=True, gc=False):
    """An error: rms and max in sigma (null at exact activations), largest absolute, where."""

    rms: float | None
    max: float | None
    max_abs: float
    index: tuple[int, ...]


class FaultRecord(msgspec.Struct, frozen=True, gc=False):
    """A fault that explains the error: `estimate`, its standard deviation and the right value where it is a number got wrong."""

    name: str
    step: str
    amplitude: float
    z: float
    parameter: str | None
    estimate: float | None
    deviation: float | None
    right: float | None = None

    def __post_init__(self) -> None:
        """Give a fault of an older results file its present name."""
        if self.name in RENAMED_FAULTS:
            msgspec.structs.force_setattr(self, "name", RENAMED_FAULTS[self.name])


class StripRecord(msgspec.Struct, frozen=True, gc=False):
    """Where along an axis of `size` an error sits: RMS of each slice, or of so many side by side; null where none is judged."""

    axis: str
    size: int
    values: list[float | None]


class SpreadRecord(msgspec.Struct, frozen=True, gc=False):
    """The distribution of an error, in `sigma` or `ulp`: its histogram; of the worst, its RMS along each axis.

    `tokens` has the RMS at each row and position.
    """

    unit: str
    counts: list[int]
    strips: list[StripRecord]
    tokens: list[list[float | None]]


class ActivationRecord(_Record, frozen=True, gc=False, tag="activation"):
    """One activation's verdict on one batch; `global` is the global error.

    `faults` together explain it best; `alternatives` are such sets that cannot be distinguished from it on this batch; `anatomy` is
    what can be said where nothing explains it.
    """

    implementation: str
    golden: str
    device: str
    dtype: str
    batch: str
    activation: str
    outcome: Outcome
    role: str | None
    local: ErrorRecord | None
    overall: ErrorRecord | None
    faults: list[FaultRecord]
    arithmetic: str | None
    limits: dict[str, float]
    excess: float | None
    reason: str
    alternatives: list[list[FaultRecord]] = []
    anatomy: list[str] = []
    spread: SpreadRecord | None = None


class Sensitivity(msgspec.Struct, frozen=True, gc=False):
    """How well one fault would have been seen: at its weakest place, and at how many of the places that it can act on.

    For a fault that is a number got wrong, `right` and `smallest`: the right value, and the nearest wrong one that shows, at the
    place where it shows best.
    """

    fault: str
    weakest: str
    expected_z: float
    separable: int
    places: int
    parameter: str | None = None
    right: float | None = None
    smallest: float | None = None


class PlaceRecord(msgspec.Struct, frozen=True, gc=False):
    """One element that shows a failure: what is found there, what is expected (or found in the other run), what is allowed between.

    `element` is where in the first run it stands; numbers are null where they are not finite.
    """

    activation: str
    element: tuple[int, ...]
    found: float | None
    expected: float | None
    allowed: float


class CounterexampleRecord(msgspec.Struct, frozen=True, gc=False):
    """The smallest example that fails: all that it takes to run it again. `network` is a golden, or `checkpoint:DIR`.

    `words` are the batch's tokens, where there is a tokenizer. `runs` are the inputs that were run, in order; `script` shows the
    failure without this file; `origin` is `module:name` of the candidate, where it is known.
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
    """One check of one candidate on one golden; `judged` of `activations` were observed.

    Of a check that draws its batches, `tried` are how many, and `worst` the largest error over its limit among those that hold.
    `require` are the patterns of activations that had to be observed. Of the `seconds`, `candidate_seconds` were waited for the
    candidate, and `judge_seconds` are the others; both are null in files of earlier versions of the suite.
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
    require: list[str] = []
    candidate_seconds: float | None = None
    judge_seconds: float | None = None


class Footer(_Record, frozen=True, gc=False, tag="footer"):
    """The counts."""

    declared: int
    ran: int
    outcomes: dict[str, int]
    exit_code: int


Record = Header | ActivationRecord | CheckRecord | Footer


def json_schema() -> dict[str, Any]:
    """The JSON Schema of one line."""
    return msgspec.json.schema(Record)


@dataclass(frozen=True)
class CaseRecords:
    """A check, and the activations that were judged for it."""

    check: CheckRecord
    activations: tuple[ActivationRecord, ...]


_SCREENED = "Depth screen: each step was judged by its RMS and largest error alone; names and the global error were not looked for."


@dataclass(frozen=True)
class Note:
    """What is to be known of results beside the verdicts.

    Attributes:
        kind: a `contradiction`, something `missing`, a `duplicate` that is counted once, a property of the
            `machine`, or the `depth` of the judgement.
        text: a sentence.
    """

    kind: Literal["contradiction", "missing", "duplicate", "machine", "depth"]
    text: str

    @property
    def grave(self) -> bool:
        """Whether it keeps the results from being a success."""
        return self.kind in ("contradiction", "missing")

    def __str__(self) -> str:
        """For reports."""
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Results:
    """One run, or several as one.

    Attributes:
        headers: of each, in the order in which they were given.
        footer: None where it is to be counted anew.
        notes: what is missing, what contradicts itself and what is reported twice.
    """

    headers: tuple[Header, ...]
    cases: tuple[CaseRecords, ...]
    footer: Footer | None
    notes: tuple[Note, ...] = ()

    @property
    def header(self) -> Header | None:
        """The first."""
        return self.headers[0] if self.headers else None

    _repr_html_ = late("report.views:results_fragment")

    @property
    def remarks(self) -> tuple[Note, ...]:
        """The notes, and what is to be known of the machines that the runs were made on, once each."""
        machines = (header.machine for header in self.headers if header.machine)
        sentences = dict.fromkeys(sentence for machine in machines for sentence in machine.exceeding)
        depths = {header.depth for header in self.headers}
        screened = (Note("depth", _SCREENED),) if "screen" in depths else ()
        return (*self.notes, *screened, *(Note("machine", sentence) for sentence in sentences))

    @property
    def sound(self) -> bool:
        """Whether it is all there is, and agrees with itself."""
        return not any(note.grave for note in self.notes)

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        """Every check."""
        return tuple(case.check for case in self.cases)

    @property
    def activations(self) -> tuple[ActivationRecord, ...]:
        """Every activation."""
        return tuple(a for case in self.cases for a in case.activations)
