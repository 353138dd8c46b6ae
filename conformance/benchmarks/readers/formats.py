"""The formats of outputs in `diagnose --help`, each with its example."""

import re
from collections.abc import Iterator
from importlib.resources import files
from textwrap import dedent
from typing import NamedTuple

_FORMAT = re.compile(r"^(?P<source>\S.*) \((?P<suffix>\.\w+)\):\n(?P<example>(?: {4}.*\n)+)", re.MULTILINE)


class OutputFormat(NamedTuple):
    """A format of outputs.

    Attributes:
        source: program or function that writes this format.
        suffix: suffix of the file.
        example: content of a file with the embedding (0.125, -0.5, 0.75, 0.25); or, if `is_code`, the line of Python that writes
            the file `out` + suffix from this embedding, x.
    """

    source: str
    suffix: str
    example: str

    @property
    def is_code(self) -> bool:
        """Whether the example is the line of Python that writes the file."""
        return self.suffix not in (".txt", ".json")


def _formats() -> Iterator[OutputFormat]:
    for match in _FORMAT.finditer(files("conformance.cli").joinpath("help.md").read_text("utf-8")):
        yield OutputFormat(match["source"], match["suffix"], dedent(match["example"]).rstrip("\n"))


FORMATS = tuple(_formats())
