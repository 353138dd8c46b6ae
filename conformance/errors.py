"""The exceptions of the package. The exit code of each says who caused the error.

The exit code is 1 for the candidate, 2 for the caller, and 3 for the harness or a fixture. During a run, every error is recorded as
the outcome of its check, and the run continues.
"""

from typing import Any

INTERRUPTED = 130  # exit code of shells after SIGINT


class ConformanceError(Exception):
    """The base class of all exceptions that this package raises deliberately."""

    exit_code = 3


class UsageError(ConformanceError):
    """The caller asked for something that does not exist, or for a combination that is not allowed."""

    exit_code = 2


class UnknownNameError(UsageError):
    """Nothing is registered under the requested name."""


class CandidateNameError(UnknownNameError):
    """The name of a candidate is that of no file, module or object, or of an object that is not an implementation."""


class PluginError(ConformanceError):
    """A plug-in could not be imported; the message contains its distribution, version and traceback."""

    exit_code = 1


class CheckpointError(UsageError):
    """A checkpoint has missing or unexpected parameters, or parameters of the wrong shape."""


class UnsupportedArchitectureError(UsageError):
    """The oracle has no equations for the architecture."""


class FixtureError(ConformanceError):
    """A stored fixture is missing, altered or truncated."""


class OutputError(ConformanceError):
    """A report or the results cannot be written, or are no longer what was written."""


class DeviceLostError(ConformanceError):
    """A device that worked earlier no longer does, because code that ran on it has broken its context."""


class MachineError(ConformanceError):
    """A function of the machine's library is not accurate enough for float32, so nothing can be judged on this machine."""


class DependencyMissingError(ConformanceError):
    """An optional dependency is not installed. The check is skipped and counted; the message says how to install it."""


class Unsupported(ConformanceError):
    """The candidate does not support the case. The check is skipped and is not counted among the declared checks."""

    exit_code = 1


class NotApplicable(ConformanceError):
    """The candidate does not expose what the check examines. The check is skipped and is not counted among the declared checks."""

    exit_code = 1


class Unavailable(ConformanceError):
    """The machine lacks something that the check needs. The check is skipped and is counted among the declared checks."""

    exit_code = 1


class CandidateFailure(ConformanceError):
    """A failure caused by the candidate.

    Attributes:
        batch: the `Batch` on which the candidate failed, or None if it is not known; typed as `Any`, since batches raise errors.
    """

    exit_code = 1
    batch: Any = None


class CandidateError(CandidateFailure):
    """The candidate violated the contract: an array has the wrong shape, dtype or name, or a value that is not finite."""


class RegistrationError(CandidateError):
    """A table or a tap in the candidate's registration does not fit its module. This implies nothing about the BERT itself."""


class NotFiniteError(CandidateError):
    """An activation has judged elements that are not finite.

    Attributes:
        places: a boolean array of the activation's shape, true at these elements.
    """

    def __init__(self, message: str, places: Any) -> None:
        """Keep the message and the places."""
        super().__init__(message)
        self.places = places


class CandidateCrash(CandidateFailure):
    """The candidate's own code raised an exception; the message contains its traceback."""


class CandidateEnded(CandidateCrash):
    """The candidate's process has ended, so it cannot be called again."""


class CandidateTimeout(CandidateFailure):
    """The candidate did not finish within its time limit."""
