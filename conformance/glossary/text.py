"""Docstrings as paragraphs of running text."""

import inspect
import re


def joined(text: str) -> str:
    """The text in one line."""
    return " ".join(text.split())


def paragraphs(docstring: str) -> tuple[str, ...]:
    """The paragraphs of a docstring, one line each; an equation that is set off and an item of a list keep lines of their own."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=    )", inspect.cleandoc(docstring))
    return tuple(joined(block) for block in blocks if block.strip())
