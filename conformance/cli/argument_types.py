"""Types of command-line arguments: functions of the text that argparse calls, and whose errors it prints.

`add_checkpoint` and `add_inputs` add arguments that several commands share.
"""

import argparse
import math
import os
import re
from pathlib import Path

_UNDECODED = re.compile("[\ud800-\udfff]")  # for the bytes that Python could not decode
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


def utf8(text: str) -> str:
    """Return a text; what Python could not decode, such as UTF-8 under the locale C, is decoded as UTF-8."""
    if not _UNDECODED.search(text):
        return text
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a:.80} is not UTF-8") from error


def size(text: str) -> int:
    """Return a positive number of bytes, given with or without a binary unit."""
    match = _SIZE.fullmatch(text)
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8GiB, 512MiB or a number of bytes")
    exponent: int = ["", "KiB", "MiB", "GiB"].index(match[2] or "")
    return int(match[1]) << (10 * exponent)


def add_checkpoint(parser: argparse.ArgumentParser, says: str, *, required: bool = False) -> None:
    """Add the folder of a checkpoint, described by `says`, and the permission to read a pickle."""
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", required=required, help=says)
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="if DIR has no safetensors file, read its pytorch_model.bin (tensors only)",
    )


def add_inputs(parser: argparse.ArgumentParser, text: str, batch: str) -> None:
    """Add the inputs of a network: texts and a file, each described by its help."""
    parser.add_argument("--text", type=utf8, action="append", metavar="TEXT", help=text)
    parser.add_argument("--batch", type=Path, metavar="FILE", help=batch)
