"""What a failure leaves behind, and running it again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from conformance.batch import Batch
from conformance.case import Case
from conformance.errors import UsageError
from conformance.goldens.golden import nested, stored_arrays
from conformance.goldens.own import golden_of, open_golden
from conformance.result import Result
from conformance.run import check


def left_by(case: Case, folder: Path) -> Path:
    """The file that a failure of that case leaves."""
    name = "-".join((case.implementation, case.golden, case.device, case.dtype))
    return folder / f"{''.join(c if c.isalnum() or c in '-_.' else '_' for c in name)}.safetensors"


def leave(result: Result, origin: str, batches: Mapping[str, Batch], folder: Path, require: Sequence[str] = ()) -> Path:
    """Write the inputs on which a case failed, and what it takes to run it again; returns the file.

    `origin` is the name under which `open_golden` finds the network.
    """
    failed = {v.batch for v in result.verdicts if v.outcome == "fail"} & set(batches) or set(batches)
    case, path = result.case, left_by(result.case, folder)
    about: dict[str, Any] = {"implementation": case.implementation, "golden": origin, "device": case.device, "dtype": case.dtype}
    about["require"] = list(require)
    arrays = stored_arrays({n: b for n, b in batches.items() if n in failed}, {})
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path, {"replay": json.dumps(about)})
    return path


def replay(path: Path) -> Result:
    """Run again what a failure left behind; `UsageError` for a file that is none of these."""
    try:
        with safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {})["replay"])
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- no mapping
        case = Case(about["implementation"], about["golden"], about["device"], about["dtype"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is not what a failure leaves behind: {error!r}") from error
    batches = {n: Batch.of(found) for n, found in nested(arrays, "batch").items()}
    subject = golden_of(case.golden, open_golden(case.golden).checkpoint, batches)
    return check(case.implementation, subject, case.device, case.dtype, require=about["require"])
