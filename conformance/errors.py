"""The errors, each with an exit code that says who caused it.

It is 1 for the candidate, 2 for the caller, 3 for the harness or a fixture. In a run every error becomes the outcome of its check,
and the run continues.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.model.batch import Batch

INTERRUPTED = 130  # the exit code of shells after SIGINT


class ConformanceError(Exception):
    """Base of everything raised on purpose."""

    exit_code = 3


class UsageError(ConformanceError):
    """The caller asked for something that does not exist or does not go together."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that nothing is registered under."""


class PluginError(ConformanceError):
    """A plug-in that could not be imported; its text has the distribution, the version and the traceback."""

    exit_code = 1


class CheckpointError(UsageError):
    """A checkpoint whose parameters are missing, unexpected, or of the wrong shape."""


class UnsupportedArchitectureError(UsageError):
    """An architecture that the oracle has no equations for."""


class FixtureError(ConformanceError):
    """A stored fixture is missing, altered or cut short."""


class DeviceLostError(ConformanceError):
    """A device that worked, and no longer does: what ran on it before has broken its context."""


class MachineError(ConformanceError):
    """The machine's library has a function that is no float32 function: nothing can be judged on it."""


class DependencyMissingError(ConformanceError):
    """An optional dependency is not installed: a counted skip, whose text is the way to install it."""


class Unsupported(ConformanceError):
    """The candidate does not support the case: a skip, and not counted as declared."""

    exit_code = 1


class NotApplicable(ConformanceError):
    """What a check looks at the candidate does not expose: a skip, and not counted as declared."""

    exit_code = 1


class Unavailable(ConformanceError):
    """The machine lacks something: declared, and a counted skip."""

    exit_code = 1


class CandidateFailure(ConformanceError):
    """A failure that the candidate caused; `batch` is the one that it was run on, where that is known."""

    exit_code = 1
    batch: "Batch | None" = None


class CandidateError(CandidateFailure):
    """The candidate broke the contract: a wrong shape, dtype, name or a value that is not finite."""


class RegistrationError(CandidateError):
    """A table or a tap of the candidate's registration does not fit its module: nothing is said about the BERT itself."""


class NotFiniteError(CandidateError):
    """An activation has elements that are judged and not finite."""


class CandidateCrash(CandidateFailure):
    """The candidate's own code raised; the text has its traceback."""


class CandidateEnded(CandidateCrash):
    """The candidate has ended its process; it cannot be asked again."""


class CandidateTimeout(CandidateFailure):
    """The candidate had not come to an end in the time that it was given."""
