"""How a case ends, and who caused it: the candidate (exit code 1), the caller (2), the harness (3), or none of them (a skip).

The duration of a case is counted, and the part of it spent waiting for the candidate rather than judging. A candidate may compute
its next activations while the previous one is judged. That time counts as the judge's; only waiting counts as the candidate's.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from conformance.errors import (
    CandidateCrash,
    CandidateError,
    CandidateFailure,
    CandidateTimeout,
    ConformanceError,
    DependencyMissingError,
    NotApplicable,
    RegistrationError,
    Unavailable,
    Unsupported,
)
from conformance.names import capped, class_name, described_error, message_of
from conformance.results.case import Case
from conformance.results.outcomes import Outcome, severity
from conformance.results.result import Result

T = TypeVar("T")
_SUITE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Termination:
    """How a case, or one batch of it, ended; the fields are those of `Result`."""

    outcome: Outcome
    reason: str = ""
    exit_code: int = 0
    declared: bool = True
    by_values: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        # The texts come from outside: a surrogate must not prevent writing them, and their length must not fill the disk.
        for name in ("reason", "note"):
            object.__setattr__(self, name, capped(getattr(self, name)).encode("utf-8", "backslashreplace").decode())

    @property
    def rank(self) -> int:
        """The severity of the outcome; larger is worse."""
        return severity(self.outcome)

    @property
    def is_judged(self) -> bool:
        """Whether the candidate was judged."""
        return self.outcome in ("pass", "fail")

    def result(self, case: Case, **further: Any) -> Result:
        """Return the result of a case that ended in this way, with further fields of `Result`."""
        return Result(case, **{**vars(self), **further})


def run_guarded(work: Callable[[], T]) -> T | Termination:
    """Return what `work` returns or, if it raises an exception, how the case ends.

    An exception that is none of the package's own is attributed to the harness (exit code 3).
    """
    try:
        return work()
    except (Unsupported, NotApplicable) as why:
        return Termination("skip", message_of(why) or f"{class_name(why)} was raised without a reason", declared=False)
    except (Unavailable, DependencyMissingError) as why:
        return Termination("skip", message_of(why))
    except RegistrationError as error:
        return Termination("error", f"registration: {message_of(error)}", error.exit_code)
    except CandidateError as error:
        return Termination("fail", message_of(error), 1)
    except CandidateCrash as error:
        return Termination("crash", message_of(error), 1)
    except CandidateTimeout as error:
        return Termination("timeout", message_of(error), 1)
    except ConformanceError as error:
        return Termination("error", message_of(error), error.exit_code)
    except Exception as error:
        text = f"the harness itself failed, please report it: {described_error(error)}\n{traceback.format_exc()}"
        return Termination("error", text, 3)


def call_candidate(call: Callable[[], T], *, may_refuse: bool = False) -> T:
    """Call a function that runs the candidate's code and nothing else.

    If it `may_refuse`, it may still raise `Unsupported` or `DependencyMissingError` to decline the case.

    Raises:
        CandidateCrash: the candidate's code raised an exception, including `SystemExit`.
    """
    try:
        with waiting(), always_compiled():
            return call()
    except (CandidateFailure, NotApplicable, KeyboardInterrupt):
        raise
    except (Unsupported, DependencyMissingError) as error:
        if may_refuse:
            raise
        raise CandidateCrash(f"{rendered(error)}\na candidate says so in supports() or prepare(), not in a call") from error
    except BaseException as error:
        raise CandidateCrash(rendered(error)) from error


@contextmanager
def always_compiled() -> Iterator[None]:
    """Remove the limits on recompilation by `torch.compile` inside this context and in threads that inherit its context variables.

    `torch.compile` compiles a function again for each new kind of input. Once it has been compiled eight times
    (`torch._dynamo.config.recompile_limit`), the function is run eagerly, and a warning is all that says so. A run has more goldens
    and batches than that, so the eager function would be judged in place of the compiled one.

    Nothing is done, and nothing imported, before the candidate's code has imported the compiler.
    """
    if "torch._dynamo" not in sys.modules:
        yield
        return
    from torch._dynamo.utils import disable_cache_limit

    with disable_cache_limit():
        yield


def rendered(error: BaseException) -> str:
    """Return the message and traceback of an exception; its message comes from the candidate's code, which may itself fail."""
    try:
        lines = traceback.format_exception(type(error), error, _from_the_candidate(error.__traceback__))
        only = traceback.format_exception_only(error)
        message = only[0 if getattr(error, "__notes__", None) else -1]  # a syntax error shows its line first; notes follow
        if lines[-1] == message:
            del lines[-1]  # an exception group has further exceptions after its message
        return "".join([message, *lines, *_missing_programs(error)])
    except BaseException as another:
        return f"{class_name(error)}, whose text raises {class_name(another)}"


def _from_the_candidate(whole: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside the suite, that of the candidate's call; all of it if there is none."""
    part = whole
    while part is not None and _is_of_the_suite(Path(part.tb_frame.f_code.co_filename)):
        part = part.tb_next
    return part or whole


def _is_of_the_suite(file: Path) -> bool:
    """Return whether a source file is the suite's own; its tests and benchmarks have candidates."""
    return file.is_relative_to(_SUITE) and file.relative_to(_SUITE).parts[0] not in ("tests", "benchmarks")


def _missing_programs(error: BaseException | None) -> Iterator[str]:
    """Yield advice for each program, such as a compiler, that the candidate tried to start and that does not exist."""
    seen: list[BaseException] = []
    while error is not None and not any(error is one for one in seen):  # a chain of causes may be cyclic
        seen.append(error)
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, FileNotFoundError) and frames and frames[-1].name == "_execute_child":
            yield f"the candidate starts the program {error.filename!a}, which is not found: install it or put it on PATH"
        error = error.__cause__ or error.__context__


@dataclass
class Waited:
    """The seconds spent waiting for the candidate."""

    seconds: float = 0.0


_waited: ContextVar[Waited | None] = ContextVar("waited", default=None)


def timed(result_of: Callable[[], Result]) -> Result:
    """Return what `result_of` returns, with its duration in seconds and the part of it spent waiting for the candidate."""
    start = time.perf_counter()
    with counted() as waited:
        result = result_of()
    seconds = time.perf_counter() - start
    return replace(result, seconds=seconds, candidate_seconds=min(waited.seconds, seconds))


@contextmanager
def counted() -> Iterator[Waited]:
    """Count the time spent waiting for the candidate inside this context."""
    waited = Waited()
    with _counting_in(waited):
        yield waited


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time spent inside this context as waiting for the candidate; nested contexts count once."""
    waited, start = _waited.get(), time.perf_counter()
    try:
        with _counting_in(None):
            yield
    finally:
        if waited is not None:
            waited.seconds += time.perf_counter() - start


@contextmanager
def _counting_in(waited: Waited | None) -> Iterator[None]:
    token = _waited.set(waited)
    try:
        yield
    finally:
        _waited.reset(token)
