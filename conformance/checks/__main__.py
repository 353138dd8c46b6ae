"""`python -m conformance.checks`: the table of checks, as it stands in the README."""

from collections.abc import Iterator

from conformance.checks.catalogue import CHECKS


def table() -> Iterator[str]:
    """A line of Markdown a check."""
    yield "| check | proves | catches, for one |"
    yield "| --- | --- | --- |"
    for check in CHECKS.values():
        yield f"| `{check.name}` | {check.proves} | {check.catches} |"


if __name__ == "__main__":
    print("\n".join(table()))
