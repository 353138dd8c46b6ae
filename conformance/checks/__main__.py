"""`python -m conformance.checks`: print the table of checks in `README.md` beside it."""

from collections.abc import Iterator

from conformance.checks.catalogue import CHECKS


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table with one row per check."""
    yield "| check | proves | catches, for example |"
    yield "| --- | --- | --- |"
    for check in CHECKS.values():
        yield f"| `{check.name}` | {check.proves} | {check.catches} |"


if __name__ == "__main__":
    print("\n".join(table()))
