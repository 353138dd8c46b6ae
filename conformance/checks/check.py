"""A check, and the order to make one. Imports nothing heavy: names and descriptions are wanted before any check is run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformance.checks.search.plan import USUAL, Plan
from conformance.results.case import Case

if TYPE_CHECKING:
    from conformance.goldens.golden import Golden
    from conformance.results.example import Example
    from conformance.results.result import Result


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what test ids, results and known failures call it.
        proves: what is true of a candidate that passes.
        catches: a mistake that it is there for.
        conductor: a law, or what carries out an order, in this package, `module:name`; imported when it is run.
        every_golden: whether it is for all goldens, or for the small ones alone.
        searches: whether its batches are drawn; else they are the golden's own.
    """

    name: str
    proves: str
    catches: str
    entry_point: str
    every_golden: bool = False
    searches: bool = False

    def execute(self, order: "CheckRequest") -> "Result":
        """What came of the order; nothing is raised."""
        module, _, name = self.entry_point.partition(":")
        found = getattr(import_module(f"conformance.{module}"), name)
        if callable(found):
            return found(order)  # type: ignore[no-any-return]
        from conformance.checks.searched import execute

        return execute(found, order)


@dataclass(frozen=True)
class CheckRequest:
    """What is to be run, and how far.

    Attributes:
        case: how the result is keyed.
        candidate: the implementation.
        golden: the network, and the batches of it.
        runs: among how many checks the false-alarm probability is shared.
        plan: how examples are drawn.
        known: examples that are tried first.
        require: patterns of activations that must be observed, where all of them are judged.
    """

    case: Case
    candidate: Any
    golden: "Golden"
    runs: int = 1
    plan: Plan = USUAL
    known: "Sequence[Example]" = ()
    require: Sequence[str] = ()


def run(
    check: Check,
    implementation: Any,
    golden: "str | Golden",
    device: str,
    dtype: str,
    runs: int = 1,
    plan: Plan = USUAL,
    known: "Sequence[Example]" = (),
    require: Sequence[str] = (),
) -> "Result":
    """The check's result; `implementation` and `golden` are names or objects. Nothing is raised."""
    from conformance.candidates.registry import as_implementation, load, name_of
    from conformance.checks.repro.artifacts import with_repro
    from conformance.goldens.custom_golden import fits, open_golden
    from conformance.results.termination import termination_of

    case = Case(name_of(implementation), golden if isinstance(golden, str) else golden.name, device, dtype, check.name)
    found: list[Any] = []

    def opened() -> None:
        found.append(load(implementation) if isinstance(implementation, str) else as_implementation(implementation))
        found.append(open_golden(golden) if isinstance(golden, str) else golden)

    ending = termination_of(opened)
    if ending is not None:
        return replace(ending, case=case)
    candidate, subject = found
    if not check.searches:
        kept = {f"example-{i}": e.batch for i, e in enumerate(known, 1) if fits(e.batch, subject.checkpoint.architecture)}
        subject = replace(subject, batches={**kept, **subject.batches}) if kept else subject
    result = check.execute(CheckRequest(case, candidate, subject, runs, plan, known, require))
    return with_repro(replace(result, case=case), subject, candidate)
