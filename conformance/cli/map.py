"""The command `map`: propose the registration of a module with unknown names, as a report and as an adaptor in Python."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.cli.output import print_report
from conformance.errors import UsageError
from conformance.report.document import Document, Row, Span

if TYPE_CHECKING:
    from conformance.mapping.proposal import Proposal


_SMALL_GOLDENS = ("tiny", "deep")  # of `deep`, the intermediate size is four times the hidden size, which some modules require


def run(arguments: Namespace) -> int:
    """Print the proposal and write the adaptor; return 0 if the adaptor can be run, 1 if an open question prevents it.

    Raises:
        UsageError: there is no such object, or its signature does not determine how it is built.
        CandidateError: the object's own code raised an exception.
    """
    from conformance.mapping.source import adaptor

    if arguments.output:
        _require_new_python_file(arguments.output, arguments.module)
    proposal = proposal_of(arguments.module, arguments.checkpoint)
    refusal = None
    if arguments.output and proposal.parameters:
        try:
            arguments.output.write_text(adaptor(proposal), "utf-8")
        except UsageError as error:  # raised when the proposal is printed
            refusal = error
    print_report(_document(proposal, None if refusal else arguments.output), arguments.format)
    if refusal:
        raise refusal
    return 0 if proposal.is_runnable else 1


def _require_new_python_file(path: Path, module: str) -> None:
    """Raise `UsageError` unless the adaptor can be written at `path`, from where it can import the file of `module`."""
    if path.suffix != ".py":
        raise UsageError(
            f"the adaptor is a Python file, but {path} does not end in .py: give another name, such as {path.with_suffix('.py')}"
        )
    if path.exists():
        raise UsageError(f"{path} already exists and is not overwritten: give another name, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the adaptor {path.name}: create it, or give another one")
    home = Path(module.partition(":")[0])
    if home.suffix == ".py" and home.parent.resolve() != path.parent.resolve():
        raise UsageError(f"the adaptor imports {home.name}, so it must be in the same folder: give -o {home.parent / path.name}")


def proposal_of(name: str, checkpoint: Path | None = None) -> "Proposal":
    """Return the proposal for the object at `package.module:object` or `FILE.py:object`."""
    from conformance.candidates.lookup import require_known, resolved
    from conformance.candidates.registry import imported
    from conformance.mapping.mapped import proposed
    from conformance.model.directory import load_directory

    require_known(name)
    factory = imported(lambda: resolved(name), name)
    home, _, path = name.partition(":")
    architecture = load_directory(checkpoint).architecture if checkpoint else None
    return proposed(factory, path, Path(home).stem if home.endswith(".py") else home, architecture)


def _document(proposal: "Proposal", output: Path | None) -> Document:
    computed, of = proposal.coverage
    layers, rows = proposal.architecture.num_hidden_layers, list(proposal.rows())
    matching = f"{computed} of {of} activations of a network of {layers} layers match the oracle"
    view = {
        "proposal": proposal,
        "matching": Span(matching, "good" if computed == of else "odd"),
        "tables": _tables([row for row in rows if row[-1] != "by value"]),
        "matched": _tables(rows),
        "questions": [(kind, texts) for kind, texts in (("open", proposal.open), ("differs", proposal.differs)) if texts],
        "next": _next(proposal, output) if output else ("", ""),
    }
    data = {
        "build": proposal.builder.text,
        "call": proposal.call.arguments,
        "rows": [dict(zip(("what", "name", "proposed", "evidence"), row, strict=True)) for row in rows],
        "open": proposal.open,
        "differs": proposal.differs,
    }
    return Document("map", view, proposal.name, data=data)


def _tables(rows: Sequence[tuple[str, str, str, str]]) -> list[tuple[str, list[Row]]]:
    """Return the rows of a proposal by their kind."""
    return [(what, [(row[3], row[1], row[2]) for row in of_kind]) for what, of_kind in groupby(rows, key=lambda row: row[0])]


def _next(proposal: "Proposal", output: Path) -> tuple[str, str]:
    """Return a sentence on the adaptor that was written, and the command that runs it; empty if it cannot be run yet."""
    from conformance.mapping.source import variable

    if not proposal.parameters:
        return f"{output} is not written: no parameter of {proposal.name} was recognised as one of BERT's", ""
    if not proposal.is_runnable:
        return f"the adaptor is in {output}; answer its open questions there before it is run", ""
    name = shlex.quote(f"{output}:{variable(proposal)}")
    return f"the adaptor is in {output}; to run it:", f"bert-conformance run {name}{_smallest_golden(proposal)}"


def _smallest_golden(proposal: "Proposal") -> str:
    """Return the option of `run` for a golden on which the module can be run; an empty string if it can be run on none of them."""
    from conformance.goldens.golden import load_golden

    for name in _SMALL_GOLDENS:
        a = load_golden(name).checkpoint.architecture
        if not any(eval(each.lacking, {"a": a}) for each in proposal.requirements):
            return f" --golden {name}"
    return ""
