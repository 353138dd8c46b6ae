"""A case: one check of one candidate on one golden, on a device, in a dtype. What results, reports and test ids are keyed by."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Case:
    """What is run; `check` is `values` for the judgement of every activation."""

    implementation: str
    golden: str
    device: str = "cpu"
    dtype: str = "float32"
    check: str = "values"

    def __str__(self) -> str:
        """For progress and reports."""
        what = "" if self.check == "values" else f", {self.check}"
        return f"{self.implementation} on {self.golden}, {self.device}, {self.dtype}{what}"
