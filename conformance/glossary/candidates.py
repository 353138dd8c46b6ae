"""Entries for candidates that need no Python, a program and a recorded trace, from the pages that specify them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance.candidates import command, recorded_trace
from conformance.glossary.entry import Section, documentation

_FOLDER = Path(command.__file__).parent
_PAGE = _FOLDER / "PROTOCOL.md"
_MEANINGS = {
    "cmd": "A program in any language as a candidate: `run -i 'cmd:PROGRAM ARGS'`.",
    "trace": "A recorded trace as a candidate: `run -i trace.safetensors`.",
}


def summaries() -> Mapping[str, str]:
    """Return the meaning of each kind of candidate, in one sentence."""
    return _MEANINGS


def sections(name: str) -> Iterator[Section]:
    """Yield the protocol of programs or the format of a trace file, line by line."""
    if name == "cmd":
        yield "clients to copy", (str(_FOLDER / "client.py"), str(_FOLDER / "client.mjs"))
        yield "this page", (str(_PAGE),)
        for section in _PAGE.read_text("utf-8").split("\n## ")[1:]:
            title, _, text = section.partition("\n")
            yield title.lower(), tuple(text.strip().splitlines())
    else:
        yield "the file", tuple(documentation(recorded_trace.__name__).splitlines())


def names(written: str) -> tuple[str, ...]:
    """Return the kind of candidate of this name, with or without its colon."""
    name = written.removesuffix(":")
    return (name,) if name in _MEANINGS else ()
