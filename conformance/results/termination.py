"""How a case ends, and who caused it: the candidate (1), the caller (2), the harness (3), or none of them (a skip)."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from conformance.names import capped
from conformance.results.candidate_time import waiting
from conformance.results.case import Case
from conformance.results.outcomes import Outcome, severity
from conformance.results.result import Result

T = TypeVar("T")


@dataclass(frozen=True)
class Termination:
    """How a case, or one batch of it, ended; more severe ones have a higher rank. `by_values` as in a result."""

    outcome: Outcome
    reason: str = ""
    exit_code: int = 0
    declared: bool = True
    by_values: bool = False

    def __post_init__(self) -> None:
        # A surrogate in somebody's message must not keep it from being written down, nor fill the disk.
        object.__setattr__(self, "reason", capped(self.reason).encode("utf-8", "backslashreplace").decode())

    @property
    def rank(self) -> int:
        """How severe."""
        return severity(self.outcome)

    @property
    def is_judged(self) -> bool:
        """Whether it is a judgement of the candidate."""
        return self.outcome in ("pass", "fail")

    def result(self, case: Case, **further: Any) -> Result:
        """The result of a case that ended so, with further fields of a result."""
        return Result(case, **{**vars(self), **further})


def run_guarded(work: Callable[[], T]) -> T | Termination:
    """What `work` returns, or how a case ends in which it raises; what the candidate did not cause, the harness did (3)."""
    try:
        return work()
    except (Unsupported, NotApplicable) as why:
        return Termination("skip", str(why), declared=False)
    except (Unavailable, DependencyMissingError) as why:
        return Termination("skip", str(why))
    except RegistrationError as error:
        return Termination("error", f"registration: {error}", error.exit_code)
    except CandidateError as error:
        return Termination("fail", str(error), 1)
    except CandidateCrash as error:
        return Termination("crash", str(error), 1)
    except CandidateTimeout as error:
        return Termination("timeout", str(error), 1)
    except ConformanceError as error:
        return Termination("error", str(error), error.exit_code)
    except Exception as error:
        text = f"the harness itself failed, please report it: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return Termination("error", text, 3)


def call_candidate(call: Callable[[], T], *, may_refuse: bool = False) -> T:
    """Call the candidate's code. What it raises is its crash, and it may not end the process.

    Args:
        call: its code, and nothing else.
        may_refuse: whether it may still say, by `Unsupported` or `DependencyMissingError`, that it does not support the case.
    """
    try:
        with waiting():
            return call()
    except (CandidateFailure, NotApplicable, KeyboardInterrupt):
        raise
    except (Unsupported, DependencyMissingError) as error:
        if may_refuse:
            raise
        raise CandidateCrash(f"{_rendered(error)}\na candidate says so in supports() or prepare(), not in a call") from error
    except BaseException as error:
        raise CandidateCrash(_rendered(error)) from error


def _rendered(error: BaseException) -> str:
    """Its message, then its traceback. The message is the candidate's code, too: it may raise, or return no text."""
    try:
        *lines, last = traceback.format_exception(error)
        return "".join([last, *lines, *_missing_programs(error)])
    except BaseException as another:
        return f"{type(error).__name__}, whose text raises {type(another).__name__}"


def _missing_programs(error: BaseException | None) -> Iterator[str]:
    """What a person may do about each program that the candidate started and that there is not, such as a compiler."""
    seen: list[BaseException] = []
    while error is not None and not any(error is one for one in seen):  # a chain of causes may be a ring
        seen.append(error)
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, FileNotFoundError) and frames and frames[-1].name == "_execute_child":
            yield f"the candidate starts the program {error.filename!a}, which is not found: install it or put it on PATH"
        error = error.__cause__ or error.__context__
