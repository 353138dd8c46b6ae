"""Cases: one check of one candidate on one golden, device and dtype. Results, reports and test ids are identified by their case."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Case:
    """One check of one candidate on one golden, device and dtype; `check` is `values` for the judgement of every activation."""

    implementation: str
    golden: str
    device: str = "cpu"
    dtype: str = "float32"
    check: str = "values"

    def __str__(self) -> str:
        """Return a description for progress and reports."""
        what = "" if self.check == "values" else f", {self.check}"
        return f"{self.implementation} on {self.golden}, {self.device}, {self.dtype}{what}"
