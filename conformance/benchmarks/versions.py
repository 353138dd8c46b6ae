"""The versions that the suite was last run with, as printed in conformance/README.md: `python -m conformance.benchmarks.versions`.

Each factor of `tox.ini` ends by recording its run, in the environment of the run:
`python -m conformance.benchmarks.versions --record FACTOR FILE`, with the JUnit file of the run.
"""

import argparse
import platform
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from conformance.benchmarks.harness import bullets, table

RUNS = Path(__file__).with_name("versions.json")
TOX = Path(__file__).parents[2] / "tox.ini"

# Configurations that no factor runs, with the reasons.
UNTESTED: Mapping[str, str] = {
    "versions between those of a column, and past them": "of each, the oldest and the newest are run",
    "torch before 2.6": "transformers 5.23 refuses it",
    "exports with another torch than 2.13": "the factors run none; 2.6's `torch.export` cannot trace transformers 5.23's BERT",
    "other systems and processors": "the factors have been run on Linux x86_64 alone",
    "torch 2.6 and 2.15 with CUDA": "their wheels ran on the CPU, the CUDA libraries that they load absent or replaced by stubs",
    "CUDA": "a simulated device is used instead, and matrix units emulated after published measurements",
}


class Run(msgspec.Struct, frozen=True):
    """A run of a factor: its versions, system and date, and the numbers of tests that passed, failed and were skipped.

    Attributes:
        python, numpy, scipy: versions.
        torch: version without its build, for example `2.13.0` for `2.13.0+cpu`.
        transformers: version, or None if it is not installed.
        platform: system and processor.
        date: date of the run, ISO 8601, UTC.
        passed, failed, skipped: numbers of tests; errors count as failed.
    """

    python: str
    torch: str
    transformers: str | None
    numpy: str
    scipy: str
    platform: str
    date: str
    passed: int
    failed: int
    skipped: int

    @property
    def holds(self) -> bool:
        """Whether tests passed and none failed."""
        return self.passed > 0 and self.failed == 0


def factors(tox: Path = TOX) -> tuple[str, ...]:
    """Return the environments of `tox.ini` that record their run, in file order."""
    parser = ConfigParser(interpolation=None)
    parser.read_string(tox.read_text("utf-8"))
    recording = [name for name in parser.sections() if f"{__package__}.versions" in parser[name].get("commands", "")]
    names = (name.removeprefix("testenv:").strip("{}").split(",") for name in recording)
    return tuple(name.strip() for section in names for name in section)


def recorded(path: Path = RUNS) -> dict[str, Run]:
    """Return the last run of each factor that has been run."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Run])


def run_of(junit: Path) -> Run:
    """Return the run described by a JUnit file, in this environment.

    Raises:
        OSError: the file does not exist or cannot be read.
        ElementTree.ParseError: the file is not valid XML.
    """
    suites = list(ElementTree.parse(junit).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(kind, 0)) for suite in suites) for kind in ("tests", "failures", "errors", "skipped")
    )
    return Run(
        python=platform.python_version(),
        torch=metadata.version("torch").partition("+")[0],
        transformers=_installed("transformers"),
        numpy=metadata.version("numpy"),
        scipy=metadata.version("scipy"),
        platform=f"{platform.system()} {platform.machine()}",
        date=datetime.now(UTC).date().isoformat(),
        passed=tests - failures - errors - skipped,
        failed=failures + errors,
        skipped=skipped,
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def record(factor: str, run: Run, path: Path = RUNS) -> None:
    """Save a factor's run, replacing its previous one."""
    runs = {**recorded(path), factor: run}
    ordered = {name: runs[name] for name in sorted(runs)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")


def paragraph(runs: Mapping[str, Run], names: tuple[str, ...]) -> Iterator[str]:
    """Yield lines of Markdown: the last run of each factor, and the untested configurations.

    Args:
        runs: runs by factor.
        names: existing factors; a factor without a run is untested.
    """
    rows = [(f"`{name}`", runs[name]) for name in names if name in runs]
    yield f"Tested on {', '.join(sorted({run.platform for _, run in rows}))}, by `tox -e FACTOR`; each factor's last run:"
    yield ""
    headings = ("factor", "Python", "torch", "transformers", "NumPy", "SciPy", "passed", "failed", "skipped", "date")
    cells = (
        (r.python, r.torch, r.transformers or "none", r.numpy, r.scipy, r.passed, r.failed, r.skipped, r.date) for _, r in rows
    )
    yield from table(headings, ((name, *each) for (name, _), each in zip(rows, cells, strict=True)))
    yield ""
    yield "Untested:"
    never = {f"`{name}`": "the factor has not been run" for name in names if name not in runs}
    yield from bullets(f"{what}: {why}." for what, why in {**never, **UNTESTED}.items())


def main() -> None:
    """Print the paragraph of conformance/README.md, or record a run."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.versions", description=__doc__)
    parser.add_argument("--record", nargs=2, metavar=("FACTOR", "FILE"), help="record a run of this factor of tox.ini")
    factor, junit = parser.parse_args().record or (None, "")
    if factor is None:
        print("\n".join(paragraph(recorded(), factors())))
    elif factor not in factors():
        parser.error(f"{factor} is no factor of tox.ini: {', '.join(factors())}")
    else:
        try:
            record(factor, run_of(Path(junit)))
        except (OSError, ElementTree.ParseError) as error:
            parser.error(f"{junit}: {error}; expected what `pytest --junitxml={junit}` writes: run that first")


if __name__ == "__main__":
    main()
