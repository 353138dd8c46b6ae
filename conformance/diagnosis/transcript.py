"""Transcripts of interactive sessions: extraction of the printed output without the code."""

import re

_PROMPT = re.compile(r"\s*(?:>>>|>|\$|In \[\d+\]:|Out\[\d+\]:)(?:\s|$)")
_QUOTE = re.compile(r"\s*>[> ]*")
_CONTINUED = re.compile(
    r"\s*\.\.\.(?::|\s)\s*[^\s\[\]\d.,+-]"
)  # a continued line of Python or IPython; an omitted row of a table has no code after the dots
_TABLE = re.compile(r"(?:[\w.]+\s*[=:]\s*)?(?:[\w.]+[(!])?\[[\[\s]*[-+]?\.?\d")


def printed_text(text: str) -> str:
    """Return the text with prompts blanked out and code removed, so that lines and columns of the output are kept.

    If every line begins with `>`, the whole text is a quotation, and only the marks are blanked out. Otherwise the text after a
    prompt (`>>>`, `>`, `$`, `In [1]:`) is code, unless it is itself a table; the text after `Out[1]:` is output.
    """
    lines = text.splitlines()
    if lines and all(_QUOTE.match(line) for line in lines if line.strip()):
        return "\n".join(_QUOTE.sub(lambda found: " " * len(found[0]), line, count=1) for line in lines)
    kept: list[str] = []
    is_code = False
    for line in lines:
        prompt = _PROMPT.match(line)
        if prompt:
            is_code = "Out" not in prompt[0] and not _TABLE.match(line[prompt.end() :])
            line = " " * prompt.end() + line[prompt.end() :]
        else:
            is_code = is_code and bool(_CONTINUED.match(line))
        kept.append("" if is_code else line)
    return "\n".join(kept)
