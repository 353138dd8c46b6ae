"""Cases: one check of one candidate on one golden, device and dtype. Results, reports and test ids are identified by their case."""

from dataclasses import dataclass

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
