"""A plug-in that cannot be imported; the attribute `ends` ends the process instead."""

import sys


def __getattr__(name: str) -> object:
    if name == "ends":
        sys.exit(0)
    raise ImportError("this plug-in cannot be imported")
