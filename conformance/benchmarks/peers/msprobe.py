"""msprobe: `PrecisionDebugger` writes statistics of all modules and functions, and `msprobe compare` compares two such files.

https://gitcode.com/Ascend/msprobe/blob/master/docs/en/quick_start/pytorch_quick_start.md
"""

import csv
import json
import sys
from pathlib import Path
from unittest.mock import patch

from conformance.benchmarks.subject import Subject


def msprobe(reference: Subject, candidate: Subject, folder: Path) -> str | None:
    """Return the module, the name and the result of the first row whose result is not `pass`."""
    from msprobe.msprobe import main

    expected, found = _dumped(reference, folder), _dumped(candidate, folder)
    asked = ["msprobe", "compare", "-tp", str(found), "-gp", str(expected), "-o", str(folder)]
    # The command is called in this process, so that its CPU time counts.
    with patch.object(sys, "argv", asked):
        main()
    (table,) = folder.glob("compare_result_*.csv")
    with table.open(encoding="utf-8-sig", newline="") as rows:
        first = next((row for row in csv.DictReader(rows) if row["Result"] != "pass"), None)
    return f"{_module(found, first['NPU Name'])} {first['NPU Name']} {first['Result']}" if first else None


def _dumped(subject: Subject, folder: Path) -> Path:
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=str(folder.parent / "msprobe"), task="statistics", level="mix")
    # A process has a single debugger, which keeps its first folder and counts steps in it.
    home = Path(debugger.config.dump_path)
    debugger.start(model=subject.bert)
    subject.plain()
    debugger.stop()
    debugger.step()
    last = max(home.glob("step*"), key=lambda step: int(step.name.removeprefix("step")))
    (dump,) = last.rglob("dump.json")
    return dump


def _module(dump: Path, name: str) -> str:
    """Return the module that called a function, since a row gives the number of the call but not the caller."""
    construct = json.loads(dump.with_name("construct.json").read_text("utf-8"))
    call = name.split(".forward")[0] + ".forward"
    parent = construct.get(call)
    return str(parent[0] if isinstance(parent, list) else parent or "")
