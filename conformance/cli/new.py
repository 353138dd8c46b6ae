"""The command `new`: write a package around a registration, from templates."""

import re
from argparse import Namespace
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.cli.output import emit, rows_document
from conformance.errors import UsageError

_TEMPLATES = Path(__file__).parent / "package"
_OWN = ("__init__", "conformance")  # modules of every package
_IMPORTED = ("conformance", "torch")  # packages that every package imports


def run(arguments: Namespace) -> int:
    """Write the package and print the paths of its files; return 0.

    Raises:
        UsageError: the folder exists and is not empty, its name is not a valid package name or that of a package that is imported,
            the mapping is not complete, or a mapped file has the name of a module of the package.
    """
    folder = arguments.dir
    package = _package_name(folder.resolve().name, arguments.map)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty, and nothing is overwritten; give a new folder")
    files = dict(_files(package, arguments.map))
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    emit(rows_document([{"file": str(folder / name)} for name in files]), arguments)
    return 0


def _package_name(folder: str, mapped: str | None) -> str:
    """Return the name of the package in a folder of that name.

    Raises:
        UsageError: it cannot be imported by that name, or would hide a package that it imports.
    """
    package = folder.replace("-", "_").lower()
    if not package.isidentifier() or iskeyword(package):
        raise UsageError(f"{folder!r} is not a valid package name; use letters, digits and hyphens, such as my-bert")
    module = (mapped or "").partition(":")[0]
    hidden = {*_IMPORTED, *([] if module.endswith(".py") else [module.partition(".")[0]])}
    if package in hidden:
        raise UsageError(f"the package would hide {package}, which it imports; give another name, such as {folder}-conformance")
    return package


def _files(package: str, mapped: str | None) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file. A mapped `FILE.py` is copied into the package, which imports it from there."""
    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, variable_start_string="<<",
        variable_end_string=">>", autoescape=False,
    )  # fmt: skip
    adaptor, variable = _adaptor(mapped)
    file = Path((mapped or "").partition(":")[0])
    if file.suffix == ".py":
        if file.stem in _OWN:
            raise UsageError(f"{file} would have the name of a module of the package, {file.stem}; rename it first")
        yield f"src/{package}/{file.name}", file.read_text("utf-8")
        adaptor = re.sub(rf"^from {file.stem} import", f"from {package}.{file.stem} import", adaptor, flags=re.MULTILINE)
    values = {"package": package, "distribution": package.replace("_", "-"), "variable": variable}
    for name, template in {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        ".github/workflows/conformance.yml": "conformance.yml.txt",
        f"src/{package}/__init__.py": "init.py.txt",
        "tests/test_conformance.py": "test_conformance.py.txt",
    }.items():
        yield name, templates.get_template(template).render(values)
    yield f"src/{package}/conformance.py", adaptor or templates.get_template("adaptor.py.txt").render(values)


def _adaptor(mapped: str | None) -> tuple[str, str]:
    """Return the adaptor of the mapped module and its variable; an empty adaptor if no module is given."""
    if mapped is None:
        return "", "my_bert"
    from conformance.cli.map import proposal_of
    from conformance.mapping.source import adaptor, variable

    proposal = proposal_of(mapped)
    if not proposal.is_runnable:
        raise UsageError(f"{mapped}: the mapping is incomplete:\n  " + "\n  ".join(proposal.open))
    return adaptor(proposal), variable(proposal)
