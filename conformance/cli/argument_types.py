"""Types of command-line arguments: functions of the text that argparse calls, and whose errors it prints."""

import argparse
import math
import re

_SIZE = re.compile(r"(\d{1,15})(KiB|MiB|GiB)?")


def positive_integer(text: str) -> int:
    """Return an integer of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """Return a positive number of seconds."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return found


def size(text: str) -> int:
    """Return a positive number of bytes, given with or without a binary unit."""
    match = _SIZE.fullmatch(text)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8GiB, 512MiB or a number of bytes")
    exponent: int = ["", "KiB", "MiB", "GiB"].index(match[2] or "")
    return int(match[1]) << (10 * exponent)
