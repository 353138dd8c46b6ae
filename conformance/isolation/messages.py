"""What is sent between the process that judges and a worker: questions, answers, and what is needed for an answer."""

from collections.abc import Callable
from dataclasses import dataclass

from conformance.errors import ConformanceError
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.results.termination import LONGEST


@dataclass(frozen=True)
class Load:
    """Import the candidate of that name; answered with `Traits`."""

    name: str


@dataclass(frozen=True)
class Traits:
    """What of a candidate must be known before it is run.

    Attributes:
        is_instrumented: whether it has a form `unobserved`, since to look into it may change how it is run.
        known_failures: its attribute of that name, the path of a file; None: it has none.
    """

    is_instrumented: bool
    known_failures: str | None


@dataclass(frozen=True)
class Supports:
    """Whether it supports a case; answered with None or a reason."""

    architecture: Architecture
    device: str
    dtype: str
    unobserved: bool = False


@dataclass(frozen=True)
class Prepare:
    """Prepare it from parameters of these names; it takes the place of what was prepared before."""

    architecture: Architecture
    parameters: tuple[str, ...]
    device: str
    dtype: str
    unobserved: bool = False


@dataclass(frozen=True)
class Call:
    """Call what was prepared."""

    batch: Batch


@dataclass(frozen=True)
class Next:
    """The next activation of the call; answered with `Head`, or with None after the last."""


@dataclass(frozen=True)
class Head:
    """An activation, without its values; as in `candidates.arrays.Described`. `unreadable` says why it is no array, if so."""

    number: int
    name: object
    dtype: str = ""
    shape: tuple[int, ...] = ()
    device: str | None = None
    unreadable: str = ""


@dataclass(frozen=True)
class Read:
    """The values of the activation that came last, by its number in the call; answered with a NumPy array."""

    number: int


@dataclass(frozen=True)
class Do:
    """Call a function in the worker; answered with what it returns."""

    function: Callable[[], object]


@dataclass(frozen=True)
class Parameter:
    """Asked by a worker: the parameter of that name."""

    name: str


@dataclass(frozen=True)
class Progress:
    """Said by a worker, as `conformance.progress.report_progress` is called."""

    what: str
    done: float


@dataclass(frozen=True)
class Failure:
    """In place of an answer: an error of the project's own, raised anew where it was asked."""

    kind: type[ConformanceError]
    text: str

    @classmethod
    def of(cls, error: ConformanceError) -> "Failure":
        """As the nearest of the project's own classes: a candidate's own exists in the worker alone."""
        kind = next(c for c in type(error).__mro__ if c.__module__.startswith("conformance."))
        return cls(kind, str(error)[: 2 * LONGEST])


@dataclass(frozen=True)
class Answer:
    """An answer, and whether the device still works."""

    value: object
    is_whole: bool
