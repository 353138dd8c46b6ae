"""`python -m conformance.benchmarks.frozen`: say what a change has moved; `--write` writes the record.

Exit code 1: an outcome, a place or an exit code has moved. Names and numbers that have moved are listed as well. Numbers may differ
by `ROOM`, since other processors round otherwise.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.benchmarks.frozen.record import Record, recorded, tasks
from conformance.benchmarks.harness import in_processes, parser, table

FILE = Path(__file__).parents[1] / "frozen.json"
ROOM = 0.25  # of a logarithm to base 2, and of an estimate relative to itself
DECIDES = ("exit code", "outcome", "places")


def moved(before: Record, after: Record) -> Iterator[tuple[str, str, str, object, object]]:
    """Yield what differs: the part, the entry, what of it, and its values before and after."""
    for part in sorted(before.keys() | after.keys()):
        old, new = before.get(part, {}), after.get(part, {})
        for entry in sorted(old.keys() | new.keys()):
            if entry not in old or entry not in new:
                yield part, entry, "entry", "absent" if entry not in old else "present", "present" if entry in new else "absent"
            else:
                parts = _noise_moved if part == "noise" else _run_moved
                yield from ((part, entry, *difference) for difference in parts(old[entry], new[entry]))


def _noise_moved(old: list[Any], new: list[Any]) -> Iterator[tuple[str, object, object]]:
    for what, a, b in zip(("log2 sigma", "log2 bound", "log2 z"), old, new, strict=True):
        if (a is None) != (b is None) or (a is not None and abs(a - b) > ROOM):
            yield what, a, b


def _run_moved(old: list[Any], new: list[Any]) -> Iterator[tuple[str, object, object]]:
    for a, b in zip(old, new, strict=True):
        if isinstance(a, dict):
            yield from _places_moved(a, b)
        elif a != b:
            yield ("exit code" if isinstance(a, int) else "outcome"), a, b


def _places_moved(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    if old.keys() != new.keys():
        yield "places", sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    for place in old.keys() & new.keys():
        names = [[name for name, _ in each[place]] for each in (old, new)]
        if names[0] != names[1]:
            yield f"names at {place}", names[0], names[1]
        else:
            for (name, a), (_, b) in zip(old[place], new[place], strict=True):
                if (a is None) != (b is None) or (a is not None and abs(a - b) > ROOM * abs(a)):
                    yield f"estimate of {name} at {place}", a, b


def dumped(record: Record) -> str:
    """Return the file: one entry a line."""
    parts = []
    for part, entries in sorted(record.items()):
        lines = ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in sorted(entries.items()))
        parts.append(f'"{part}":{{\n{lines}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Record everything, and compare it with the file or write it."""
    options = parser(__doc__, FILE)
    options.add_argument("--only", choices=("candidates", "mistakes", "noise"), help="this part alone")
    chosen = options.parse_args()
    record: Record = {}
    start = time.perf_counter()
    for part, entries in in_processes(recorded, [task for task in tasks() if chosen.only in (None, task[0])], chosen.jobs):
        record.setdefault(part, {}).update(entries)
    print(f"{sum(map(len, record.values()))} entries in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    before: Record = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    if chosen.write:
        FILE.write_text(dumped(before | record), "utf-8")
        return 0
    rows = list(moved({part: before.get(part, {}) for part in record}, record))
    print("\n".join(table(("part", "entry", "moved", "before", "after"), rows)) if rows else "nothing has moved")
    return int(any(what in (*DECIDES, "entry") for _, _, what, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
