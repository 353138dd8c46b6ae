"""Entries of the glossary, and the texts of docstrings in source files."""

import ast
import inspect
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Section = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Entry:
    """The explanation of a name, as reports and options write it.

    Attributes:
        group: `mistake`, `check`, `activation`, `outcome`, `term`, `golden`, `candidate` or `input mistake`.
        summary: its meaning in one sentence.
        sections: titles, each with lines of text; no section is empty.
    """

    group: str
    name: str
    summary: str
    sections: tuple[Section, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dictionary for JSON, with the sections by title."""
        return {**asdict(self), "sections": dict(self.sections)}


def documentation(module: str, name: str = "") -> str:
    """Return the docstring of a module, or of a class or function of that name in it, from its source file.

    Python itself discards docstrings with `-OO`, and a module need not be imported for its text: those of laws import torch.
    """
    tree = _parsed(module)
    named = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
    return ast.get_docstring(next(named) if name else tree) or ""


@lru_cache
def _parsed(module: str) -> ast.Module:
    spec = find_spec(module)
    return ast.parse(Path(spec.origin).read_text("utf-8") if spec and spec.origin else "")


def joined(text: str) -> str:
    """Return the text with all whitespace replaced by single spaces."""
    return " ".join(text.split())


def paragraphs(docstring: str) -> tuple[str, ...]:
    """Return the paragraphs of a docstring, one line each; indented equations and items of lists are lines of their own."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=    )", inspect.cleandoc(docstring))
    return tuple(joined(block) for block in blocks if block.strip())
