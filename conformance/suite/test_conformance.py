"""Every check of every candidate, one test id each."""

from collections.abc import Callable

from conformance.checks.catalogue import CHECKS as CATALOGUE

CHECKS = tuple(CATALOGUE)


def test_bert(bert_check: Callable[[], None]) -> None:
    """The check named in the id holds."""
    bert_check()
