"""Write the records of a run to its results file, a case as it ends; a run that was interrupted is continued."""

from pathlib import Path
from types import TracebackType

from conformance.errors import UsageError
from conformance.results.case import Case
from conformance.results.file import Writer, resumable
from conformance.results.merge import RunRecords, merged
from conformance.results.records import CaseRecords, Header, Results
from conformance.results.to_records import footer

# The fields that a resumed run must share with its first part.
_OF_A_RUN = tuple(name for name in Header.__struct_fields__ if name not in ("started", "machine"))


def _identity(header: Header) -> dict[str, object]:
    """Return what a resumed run must share with its first part, by name."""
    fields = {name: getattr(header, name) for name in _OF_A_RUN}
    named = {
        f"the golden {k}": f"version {v.version}, {v.stored_digest:.12}, {v.weights_digest:.12}" for k, v in header.goldens.items()
    }
    return {
        **{k: v for k, v in fields.items() if k not in ("goldens", "settings", "limits")},
        **named,
        **header.settings,
        **header.limits,
    }


class Recording(Writer):
    """A results file that is open for writing; a run that is interrupted leaves a file without a footer."""

    def __init__(self, path: Path, header: Header, *, resume: bool = False) -> None:
        """Create the file, or continue the existing one if `resume` is set.

        Raises:
            UsageError: if another run is writing the file, or the file to resume has no header or belongs to a different run.
        """
        super().__init__(path, resume=resume)
        self._header, self._records = header, list[CaseRecords]()
        try:
            if resume and path.stat().st_size:
                self._resume()
            else:
                self.write(header)
        except BaseException:
            self.end(whole=False)
            raise

    def _resume(self) -> None:
        run, size = resumable(self.path)
        if run.header is None:
            raise UsageError(f"{self.path} has no header, so that it cannot be resumed")
        before, now = _identity(run.header), _identity(self._header)
        other = [name for name in before | now if before.get(name) != now.get(name)]
        if other:
            differ = "; ".join(f"{n} was {before.get(n, 'absent')!s:.60}, is {now.get(n, 'absent')!s:.60}" for n in other)
            raise UsageError(
                f"{self.path} is of another run, and cannot be resumed: {differ}; its verdicts hold for what was run then: repeat "
                "that command with --resume, or judge anew without --resume"
            )
        self._header, self._records = run.header, list(run.cases)
        self.keep(size)

    @property
    def recorded(self) -> frozenset[Case]:
        """The cases whose results are in the file."""
        return frozenset(records.check.case for records in self._records)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the file, with a footer if no exception was raised."""
        self.end(whole=kind is None)

    def end(self, *, whole: bool) -> None:
        """Write the footer if the run is complete (`whole`), and close the file."""
        if whole:
            self.write(footer(case.check for case in self._records))
        super().__exit__(None, None, None)

    @property
    def results(self) -> Results:
        """The results written so far."""
        return Results((self._header,), tuple(self._records), footer(case.check for case in self._records))

    @property
    def unfinished(self) -> Results:
        """The results written so far, with a note that checks are missing, as `read_results` returns them without a footer."""
        return merged([RunRecords(self._header, tuple(self._records), None, str(self.path))])

    def add(self, records: CaseRecords) -> None:
        """Write the records of a case."""
        self._records.append(records)
        for activation in records.activations:
            self.write(activation)
        self.write(records.check)
