"""A plug-in that cannot be imported; asked for by another name, one that ends the process."""

import sys


def __getattr__(name: str) -> object:
    if name == "ends":
        sys.exit(0)
    raise ImportError("this plug-in cannot be imported")
