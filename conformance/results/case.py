"""Cases and their known failures: one check of one candidate on one golden, device and dtype.

Results, reports and test ids are identified by their case.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from conformance.names import plain_name


@dataclass(frozen=True, order=True)
class Case:
    """One check of one candidate on one golden, device and dtype; `check` is `values` for the judgement of every activation."""

    implementation: str
    golden: str
    device: str = "cpu"
    dtype: str = "float32"
    check: str = "values"

    @property
    def file_name(self) -> str:
        """The name, without a suffix, of the files in `failures/` that reproduce a failure of the case."""
        parts = (self.implementation, self.golden, self.device, self.dtype, *([] if self.check == "values" else [self.check]))
        return plain_name("-".join(parts), "-_.")

    def __str__(self) -> str:
        """Return a description for progress and reports."""
        what = "" if self.check == "values" else f", {self.check}"
        return f"{self.implementation} on {self.golden}, {self.device}, {self.dtype}{what}"


PATTERNS = ("check", "implementation", "golden", "device", "dtype")  # what of a known failure is a pattern of its cases


@dataclass(frozen=True)
class KnownFailure:
    """One entry of a file of known failures (`checks.known_failures`); `where` is the location of the entry in it."""

    check: str
    reason: str
    issue: str = ""
    activation: str = ""
    fault: str = ""
    implementation: str = "*"
    golden: str = "*"
    device: str = "*"
    dtype: str = "*"
    where: str = field(default="", compare=False)

    def matches(self, case: Case) -> bool:
        """Return whether the patterns of the entry match a case."""
        return all(fnmatchcase(getattr(case, name), getattr(self, name)) for name in PATTERNS)

    def __str__(self) -> str:
        """Return the reason, followed by the issue in parentheses if there is one."""
        return f"{self.reason} ({self.issue})" if self.issue else self.reason
