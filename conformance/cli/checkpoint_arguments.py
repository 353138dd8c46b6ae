"""The arguments of several commands that name a local checkpoint."""

import argparse
from pathlib import Path


def add_checkpoint(parser: argparse.ArgumentParser, says: str, *, required: bool = False) -> None:
    """Add the folder of a checkpoint, described by `says`, and the permission to read a pickle."""
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", required=required, help=says)
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="if DIR has no safetensors file, read its pytorch_model.bin (tensors only)",
    )
