"""All faults, of the catalogue and fitted, and the rows of the table at which they can occur."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from conformance.faults import CATALOGUE, Fault
from conformance.faults.fitted import FITTED
from conformance.faults.fitted.fitted_fault import Fitted
from conformance.model.activation import Activation

Known = Fault | Fitted


@lru_cache(maxsize=1)
def known_faults() -> Mapping[str, tuple[Known, ...]]:
    """Return the faults by name, in the catalogue's order; a name has several faults if it is found in several ways."""
    found: dict[str, tuple[Known, ...]] = {}
    every: tuple[Known, ...] = (*CATALOGUE, *FITTED)
    for fault in every:
        found[fault.name] = (*found.get(fault.name, ()), fault)
    return found


def acts_at(faults: Iterable[Known], row: Activation) -> bool:
    """Return whether any of the faults can occur at a row of the table."""
    return any(f.is_possible_at(row.kind, row.name) for f in faults)


def acting_at(rows: Iterable[Activation]) -> list[str]:
    """Return the names of the faults that can occur at any of these rows."""
    rows = list(rows)
    return [name for name, faults in known_faults().items() if any(acts_at(faults, row) for row in rows)]
