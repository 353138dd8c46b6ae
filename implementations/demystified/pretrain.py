"""Pre-train on dialogues: `python -m conformance.implementations.demystified.pretrain [FOLDER]`; the folder defaults to our own."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from conformance import ConformanceError

from .dialogues import OWN
from .run import pretrain
from .settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 for a usage error."""
    a = _arguments(arguments)
    try:
        settings = Settings(**{field.name: getattr(a, field.name) for field in fields(Settings)})
        pretrain(settings, Path(a.out), a.steps, device=a.device)
    except ConformanceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.implementations.demystified.pretrain", description=__doc__)
    parser.add_argument("folder", nargs="?", default=str(OWN), help="the Cornell corpus's two files, or .txt files")
    parser.add_argument("--out", default="pretrained", help="where network, curve and page are written")
    parser.add_argument("--steps", type=int, default=300, help="number of training steps")
    parser.add_argument("--device", default="cpu")
    for field in fields(Settings):
        if field.name != "folder":
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
