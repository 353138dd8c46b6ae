"""A document on a terminal, or as plain text. `show` prints; the rest is pure."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from conformance.names import printable_lines
from conformance.report.document import Block, Code, Document, Folded, Heading, Items, Lists, Paragraph, Table, Verdict
from conformance.report.layout import BLANK, TONES, Line, line, listed, spans, table

_GAP = 2  # columns between columns, and before the first


def show(document: Document, console: Console) -> None:
    """Print the document, as wide as the console is."""
    for text in wrapped(document, console.width):
        console.print(text, soft_wrap=True)


def plain(document: Document, width: int) -> str:
    """What a terminal of `width` columns shows, without colours."""
    return "".join(f"{text.plain}\n" for text in wrapped(document, width))


def wrapped(document: Document, width: int) -> Iterator[Text]:
    """The document in lines of at most `width` columns, but for words that are longer."""
    for one in _lines_of(document, width):
        yield from one.wrapped(width)


def _lines_of(document: Document, width: int) -> Iterator[Line]:
    before: Block | None = None
    for block in document:
        if isinstance(block, Folded) and block.long:
            continue
        if before is not None and _stands_apart(block, before):
            yield BLANK
        yield from _lines(block, width)
        before = block


def _stands_apart(block: Block, before: Block) -> bool:
    """Whether a blank line stands before the block."""
    if isinstance(block, Verdict):
        return not isinstance(before, Verdict)
    return isinstance(block, Folded) or (isinstance(block, Heading) and not block.close)


def _lines(block: Block, width: int) -> Iterator[Line]:
    match block:
        case Verdict(text, tone):
            yield line(text, TONES.get(tone, "bold"))
        case Heading(text, verdict, tone):
            yield spans((text, "bold"), *([(": ", ""), (verdict, TONES.get(tone, ""))] if verdict else []))
        case Paragraph(text, tone):
            yield line(text, TONES.get(tone, ""), indent=2)
        case Items(items, apart):
            for statement, *details in items:
                yield from [BLANK] if apart else []
                yield line(statement, "bold", indent=2, hang=4)
                yield from (line(text, indent=4) for text in details)
        case Lists(lists):
            yield from (listed(what, of, indent=2) if of else line(what, indent=2) for what, of in lists)
        case Table():
            yield from _fitting(block, width)
        case Code(text, _, is_wrapped):
            yield from (line(one, indent=2, hang=2 if is_wrapped else None) for one in printable_lines(text.rstrip()))
        case Folded(summary, blocks):
            yield line(summary, "bold")
            yield from _lines_of(blocks, width)


def _fitting(block: Table, width: int) -> Iterator[Line]:
    """Without as many of the columns that can be spared as it takes to have each row on one line."""
    rows = [block.heads, *_grouped(block)]
    for names in block.spare:
        if sum(_GAP + max(map(cell_len, column)) for column in zip(*rows, strict=True)) <= width:
            break
        kept = [i for i, head in enumerate(rows[0]) if head not in names]
        rows = [tuple(row[i] for i in kept) for row in rows]
    return table(rows[0], rows[1:], width)


def _grouped(block: Table) -> Iterator[tuple[str, ...]]:
    """The rows, under the title of their group where it has one."""
    for title, rows in block.groups:
        yield from [(title, *[""] * (len(block.heads) - 1))] if title else []
        yield from ((f"  {name}" if title else name, *figures) for name, *figures in rows)
