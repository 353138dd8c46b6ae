"""The law that every activation on drawn batches agrees with the oracle; it is the only law with a reference."""

from conformance.checks.laws.law import Law, run_of
from conformance.checks.search.strategies import Batches
from conformance.checks.search.subject import Subject
from conformance.judge.local_error import screened
from conformance.results.example import Example
from conformance.results.law_broken import LawBroken, Location, beyond_rounding


def _is_what_the_oracle_makes(subject: Subject, example: Example) -> float:
    run = run_of(subject, example.batch)
    found = screened(subject.network(example.batch), run.values, subject.dtype, subject.device, subject.tests, subject.functions)
    wrong = next((one for one in found if one.excess > 1.0), None)
    if wrong is None:
        return max((one.excess for one in found), default=0.0)
    place = Location(wrong.activation, wrong.index, wrong.index, (wrong.actual, wrong.expected))
    where = f"{wrong.activation}{list(wrong.index)}"
    rendered = f"{where} is {wrong.actual:.9g}, expected {wrong.expected:.9g}: {beyond_rounding(wrong.excess)}"
    raise LawBroken(rendered, (run,), place, wrong.excess)


generated = Law(_is_what_the_oracle_makes, Batches(is_large=True), by_oracle=True)
