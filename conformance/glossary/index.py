"""The names that can be explained, by group, and the entries for a given name.

The groups are those of the tables that define the names; groups that need no oracle come first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import isolation
from conformance.candidates import recorded_trace
from conformance.checks.catalogue import CHECKS
from conformance.diagnosis.inputs import MISTAKES
from conformance.errors import UnknownNameError
from conformance.glossary import activations, faults, terms
from conformance.glossary.entry import Entry, Section, documentation, paragraphs
from conformance.goldens.manifest import DEFAULT_GOLDENS, manifest
from conformance.goldens.shipped_goldens import RECIPES
from conformance.names import nearest_names, suggestion
from conformance.results.outcomes import OUTCOME_TEXT, Outcome

OF_ACTIVATIONS = ("fail", "not_observed", "xfail", "pass")  # the outcomes that an activation may have
DTYPES = ("float64", "float32", "bfloat16", "float16")  # a test id ends with one of them
_EFFECTS = {
    "good": "The candidate conforms as far as this check goes.",
    "odd": "It decides nothing: neither for nor against the candidate.",
    "bad": "The run does not conform; its exit code is not 0.",
}
_CLIENTS = Path(isolation.__file__).parent
_CANDIDATES = {
    "cmd": "A program in any language as a candidate: `run 'cmd:PROGRAM ARGS'`.",
    "trace": "A recorded trace as a candidate: `run trace.safetensors`.",
}
_OF_INPUTS = {mistake.name: mistake for mistake in MISTAKES}


@dataclass(frozen=True)
class Group:
    """The entries of a group.

    Attributes:
        summaries: returns the meaning of every name in one sentence, in the order in which the names are listed.
        sections: yields the sections of the entry of a name; those without lines are left out.
        names: returns the names that a written one stands for, if it is none of the group's itself.
    """

    summaries: Callable[[], Mapping[str, str]]
    sections: Callable[[Any], Iterator[Section]]
    names: Callable[[str], tuple[str, ...]] = lambda written: ()


def _outcome(name: Outcome) -> Iterator[Section]:
    outcome = OUTCOME_TEXT[name]
    yield "effect on the run", (_EFFECTS[outcome.tone],)
    yield "what to do", (outcome.remedy,)
    of_activation = (f"of an activation: {outcome.of_activation}",) if name in OF_ACTIVATIONS else ()
    yield "in reports", (f"of a check: {outcome.of_check}", *of_activation)
    yield "in JUnit", (outcome.junit or "a test case that passes",)


def _outcomes(written: str) -> tuple[str, ...]:
    """Return the outcome of this name with spaces, or that which reports call so, unless it is a term."""
    if (name := written.replace(" ", "_")) in OUTCOME_TEXT:
        return (name,)
    said = {n: (o.of_check, *([o.of_activation] * (n in OF_ACTIVATIONS))) for n, o in OUTCOME_TEXT.items()}
    return () if terms.names(written) else tuple(n for n, texts in said.items() if written in texts)[:1]


def _check(name: str) -> Iterator[Section]:
    check = CHECKS[name]
    goldens = "every golden" if check.every_golden else f"{' and '.join(DEFAULT_GOLDENS)}, or those that are named"
    yield "catches, for example", (check.catches,)
    yield "method", paragraphs(documentation(check.function.__module__, check.function.__name__))
    yield "inputs", (f"{check.inputs}; on {goldens}",)
    yield "how to repair a failure", (check.remedy,)
    yield "to run it alone", (f"bert-conformance run NAME --check {name}",)


def _checks(written: str) -> tuple[str, ...]:
    """Return the check of a test id, `CHECK-IMPLEMENTATION-GOLDEN-DEVICE-DTYPE`."""
    test_id = written.rpartition("[")[2].rstrip("]")
    starts = [name for name in CHECKS if test_id.startswith(f"{name}-")] if test_id.endswith(DTYPES) else []
    return (max(starts, key=len),) if starts else ()


def _golden(name: str) -> Iterator[Section]:
    entry = manifest()[name]
    values = {key: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in entry.architecture.items()}
    yield "architecture", tuple(f"{key}: {value}" for key, value in values.items())
    yield "batches", (", ".join(entry.batches),)
    folder = RECIPES[name].folder()
    yield "weights", (entry.source, *([f"the checkpoint's directory: {folder}"] if folder else []))
    yield "version", (f"{entry.version}; results of different versions are not compared",)
    yield "to run it alone", (f"bert-conformance run NAME --golden {name}",)


def _candidate(name: str) -> Iterator[Section]:
    """Yield the protocol of programs or the format of a trace file, line by line."""
    if name == "trace":
        yield "the file", tuple(documentation(recorded_trace.__name__).splitlines())
        return
    page = _CLIENTS / "PROTOCOL.md"
    yield "clients to copy", (str(_CLIENTS / "client.py"), str(_CLIENTS / "client.mjs"))
    yield "this page", (str(page),)
    for section in page.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        yield title.lower(), tuple(text.strip().splitlines())


def _activation(name: str) -> Iterator[Section]:
    yield from activations.sections(name)
    yield "mistakes that can occur here", (", ".join(faults.acting_at(activations.rows()[name])),)


def _input_mistake(name: str) -> Iterator[Section]:
    mistake = _OF_INPUTS[name]
    yield "looked for", (mistake.looked_for,)
    yield "usual cause", (mistake.cause,)
    yield "how to repair it", (mistake.fix,)


GROUPS: Mapping[str, Group] = {
    "outcome": Group(lambda: {name: outcome.meaning for name, outcome in OUTCOME_TEXT.items()}, _outcome, _outcomes),
    "term": Group(terms.summaries, terms.sections, terms.names),
    "check": Group(lambda: {name: check.proves for name, check in CHECKS.items()}, _check, _checks),
    "golden": Group(
        lambda: {name: r.about for name, r in RECIPES.items()}, _golden, lambda written: (written.removeprefix("golden:"),)
    ),
    "candidate": Group(lambda: _CANDIDATES, _candidate, lambda written: (written.removesuffix(":"),)),
    "activation": Group(activations.summaries, _activation, activations.names),
    "mistake": Group(faults.summaries, faults.sections, faults.names),
    "input mistake": Group(
        lambda: {name: mistake.sentence.format(value="VALUE") for name, mistake in _OF_INPUTS.items()}, _input_mistake
    ),
}


def summaries() -> dict[str, Mapping[str, str]]:
    """Return the meaning of every name in one sentence, by group."""
    return {name: group.summaries() for name, group in GROUPS.items()}


def entries(written: str) -> tuple[Entry, ...]:
    """Return the entries that a name stands for; several if several activations' names end with it.

    Raises:
        UnknownNameError: If nothing has this name; the message gives the nearest names.
    """
    if not (entries := _entries(written)):
        names = [*terms.ALIASES, *(name for meanings in summaries().values() for name in meanings)]
        hint = suggestion(nearest_names(written, names)) or "`bert-conformance explain` lists every name"
        raise UnknownNameError(f"nothing is called {written!r}; {hint}")
    return entries


def entries_of_words(words: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries for words that were written without quotes: first all words together, then the longest names in turn.

    Example:
        >>> [entry.name for entry in entries_of_words(["global", "rms", "tiny"])]
        ['global rms', 'tiny']

    Raises:
        UnknownNameError: as raised by `entries`, for words that no name begins with, or for the one word that is unknown.
    """
    if not words:
        return ()
    for n in range(len(words), 0, -1):
        if first := _entries(" ".join(words[:n])):
            return (*first, *entries_of_words(words[n:]))
    return entries(words[0] if any(_entries(word) for word in words) else " ".join(words))  # raises


def _entries(written: str) -> tuple[Entry, ...]:
    for kind, group in GROUPS.items():
        meanings = group.summaries()
        names = (written,) if written in meanings else tuple(name for name in group.names(written) if name in meanings)
        if names:
            return tuple(Entry(kind, name, meanings[name], tuple(s for s in group.sections(name) if any(s[1]))) for name in names)
    return ()
