"""torch's DebugMode: a hash of what every operator returned, and the operators for which the hashes of two runs differ.

https://docs.pytorch.org/tutorials/recipes/debug_mode_tutorial.html
"""

from pathlib import Path
from typing import Any

from conformance.benchmarks.subject import Subject


def debug_mode(reference: Subject, candidate: Subject, _: Path) -> str | None:
    """Return the module and operator of the first mismatch, or the reason why the two logs cannot be compared."""
    from torch.utils._debug_mode import DebugMode

    expected, found = _logged(reference), _logged(candidate)
    try:
        mismatches = DebugMode.check_hash_mismatches(expected, found)
    except ValueError as error:
        return str(error)
    return f"{_module(expected, mismatches[0]['hash1'])} {mismatches[0]['call']}" if mismatches else None


def _logged(subject: Subject) -> list[Any]:
    from torch.utils._debug_mode import DebugMode

    with DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes():
        subject.plain()
    return list(mode.logs)


def _module(logs: list[Any], mismatch: float) -> str:
    """Return the innermost module of the operator with this hash, since a mismatch reports its operator but not its module."""
    from torch.utils._pytree import tree_leaves

    modules: list[Any] = []
    for call in logs:
        modules = [module for module in modules if module.call_depth < call.call_depth]
        if type(call).__name__ == "_AnnotateCall":
            modules.append(call)
        if mismatch in tree_leaves((call.log or {}).get("hash")):
            break
    return str(modules[-1].tag) if modules else ""
