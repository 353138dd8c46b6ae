"""Entries for checks and laws, from their catalogue and from the docstrings of the functions that do them."""

from collections.abc import Iterator, Mapping

from conformance.checks.catalogue import CHECKS
from conformance.glossary.entry import Section, documentation, paragraphs
from conformance.goldens.manifest import DEFAULT_GOLDENS

DTYPES = ("float64", "float32", "bfloat16", "float16")  # A test id ends with one of them.


def summaries() -> Mapping[str, str]:
    """Return what each check proves."""
    return {name: check.proves for name, check in CHECKS.items()}


def sections(name: str) -> Iterator[Section]:
    """Yield what a check catches, its method and inputs, how to repair a failure, and how to run it alone."""
    check = CHECKS[name]
    function = check.function
    goldens = "every golden" if check.every_golden else f"{' and '.join(DEFAULT_GOLDENS)}, or those that are named"
    yield "catches, for example", (check.catches,)
    yield "method", paragraphs(documentation(function.__module__, function.__name__))
    yield "inputs", (f"{check.inputs}; on {goldens}",)
    yield "how to repair a failure", (check.remedy,)
    yield "to run it alone", (f"bert-conformance run -i NAME --check {name}",)


def names(written: str) -> tuple[str, ...]:
    """Return the check of this name, or the check of a test id (`CHECK-IMPLEMENTATION-GOLDEN-DEVICE-DTYPE`)."""
    if written in CHECKS:
        return (written,)
    test_id = written.rpartition("[")[2].rstrip("]")
    starts = [name for name in CHECKS if test_id.startswith(f"{name}-")] if test_id.endswith(DTYPES) else []
    return (max(starts, key=len),) if starts else ()
