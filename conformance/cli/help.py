"""The reference of each command, which `COMMAND --help` prints after the options, from `help.md`."""

import re
from collections.abc import Mapping
from importlib.resources import files

from conformance.cli.diagnose_formats import shown

_TEXT = files("conformance.cli").joinpath("help.md").read_text("utf-8").replace("FORMATS", shown())
_SECTIONS = (section.partition("\n") for section in re.split(r"^## ", _TEXT, flags=re.MULTILINE)[1:])

REFERENCE: Mapping[str, str] = {name: f"\n{text.strip()}\n" for name, _, text in _SECTIONS}
