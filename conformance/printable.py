"""Text of anybody's that can do nothing but be read: no control character of it reaches a terminal, a page or a file."""


def printable(text: str) -> str:
    """One line: what cannot be printed (control characters, line ends, marks that turn the direction round) as Python writes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> list[str]:
    """The same of a text of several lines, which stay lines; tabs are spaces."""
    return [printable(line) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n")]
