"""The command `explain`: print the meaning of names, for the terminal, as Markdown or as JSON."""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping

from conformance.cli.output import show_document
from conformance.glossary.entry import Entry
from conformance.glossary.index import entries_of_words, summaries
from conformance.report.document import Block, Document, Heading, Items, Paragraph


def run(arguments: Namespace) -> int:
    """Print the entries of the given names, or every name by group; return 0. A name of several words needs no quotes.

    Raises:
        UnknownNameError: there is no entry for a name.
    """
    if not arguments.name:
        found = summaries()
        _show(
            Document("names", tuple(_listing(found))),
            {group: dict(meanings) for group, meanings in found.items()},
            arguments.format,
        )
        return 0
    asked = entries_of_words(arguments.name)
    document = Document("names", tuple(block for entry in asked for block in _blocks(entry)))
    _show(document, [entry.as_dict() for entry in asked], arguments.format)
    return 0


def _show(document: Document, plain: object, form: str) -> None:
    if form == "json":
        print(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        show_document(document, form)


def _blocks(entry: Entry) -> Iterator[Block]:
    yield Heading(entry.name, entry.group)
    yield Paragraph(entry.summary)
    yield Items(tuple((title, *lines) for title, lines in entry.sections))


def _listing(found: Mapping[str, Mapping[str, str]]) -> Iterator[Block]:
    for group, meanings in found.items():
        yield Heading(f"{group}s")
        width = max(map(len, meanings))
        yield from (Paragraph(f"{name:<{width}}  {meaning.partition('. ')[0]}") for name, meaning in meanings.items())
