"""The shipped test, parametrized with every check of every candidate."""

from collections.abc import Callable

from conformance.checks.catalogue import CHECKS as CATALOGUE

CHECKS = tuple(CATALOGUE)


def test_bert(bert_check: Callable[[], None]) -> None:
    """Run the check named in the test id."""
    bert_check()
