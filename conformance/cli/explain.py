"""The command `explain`: print the meaning of names, for the terminal, as Markdown or as JSON."""

import json
from argparse import Namespace
from collections.abc import Mapping

from conformance.cli.output import show_document
from conformance.glossary.index import entries_of_words, summaries
from conformance.report.document import Document, Row


def run(arguments: Namespace) -> int:
    """Print the entries of the given names, or every name by group; return 0. A name of several words needs no quotes.

    Raises:
        UnknownNameError: there is no entry for a name.
    """
    plain: object
    if arguments.name:
        asked = entries_of_words(arguments.name)
        document, plain = Document("entries", {"entries": asked}), [entry.as_dict() for entry in asked]
    else:
        found = summaries()
        tables = [(f"{group}s", [group, "meaning"], _rows(meanings)) for group, meanings in found.items()]
        document, plain = Document("names", {"tables": tables}), {group: dict(meanings) for group, meanings in found.items()}
    if arguments.format == "json":
        print(json.dumps(plain, ensure_ascii=False, indent=2))
    else:
        show_document(document, arguments.format)
    return 0


def _rows(meanings: Mapping[str, str]) -> list[Row]:
    return [(name, meaning.partition(". ")[0]) for name, meaning in meanings.items()]
