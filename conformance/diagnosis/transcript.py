"""Transcripts of interactive sessions: what was printed, without what was typed."""

import re

_PROMPT = re.compile(r"\s*(?:>>>|>|\$|In \[\d+\]:|Out\[\d+\]:)(?:\s|$)")
_QUOTE = re.compile(r"\s*>[> ]*")
_CONTINUED = re.compile(
    r"\s*\.\.\.(?::|\s)\s*[^\s\[\]\d.,+-]"
)  # of Python and IPython; a row that is left out has no code behind it
_TABLE = re.compile(r"(?:[\w.]+\s*[=:]\s*)?(?:[\w.]+[(!])?\[[\[\s]*[-+]?\.?\d")


def printed_text(text: str) -> str:
    """The text with spaces in place of prompts and of the code behind them, so that lines and columns stay what they are.

    Where every line begins with `>` the whole text is a quotation, and only the marks are removed. Otherwise what follows a prompt
    (`>>>`, `>`, `$`, `In [1]:`) is code, unless it is a table itself; after `Out[1]:` it is what was printed.
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
