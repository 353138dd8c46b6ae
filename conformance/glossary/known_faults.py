"""Every fault that has a name, and the rows of the table at which it can happen."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from conformance.faults import CATALOGUE, Fault
from conformance.faults.fit import Fitted
from conformance.faults.fitted import FITTED
from conformance.model.activation import Activation

Known = Fault | Fitted


@lru_cache(maxsize=1)
def known_faults() -> Mapping[str, tuple[Known, ...]]:
    """By name, in the catalogue's order; several of one name where the fault is found in several ways."""
    found: dict[str, tuple[Known, ...]] = {}
    every: tuple[Known, ...] = (*CATALOGUE, *FITTED)
    for fault in every:
        found[fault.name] = (*found.get(fault.name, ()), fault)
    return found


def acts_at(faults: Iterable[Known], row: Activation) -> bool:
    """Whether any of the faults can happen at a row of the table."""
    return any(f.applies_to(row) if isinstance(f, Fault) else row.kind in f.kinds for f in faults)


def acting_at(rows: Iterable[Activation]) -> list[str]:
    """Names of the faults that can happen at any of these rows."""
    rows = list(rows)
    return [name for name, faults in known_faults().items() if any(acts_at(faults, row) for row in rows)]
