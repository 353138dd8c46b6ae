"""Examples that are attached to a test and tried before any example is drawn.

@parametrize_with_checks([my_bert])
@example("padding-length", {"input_ids": [[7, 0]], "attention_mask": [[1, 0]]}, tokens=1, id=0)
def test_my_bert(check): check()
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from conformance.checks.catalogue import named

if TYPE_CHECKING:
    from conformance.results.example import Example

F = TypeVar("F", bound=Callable[..., Any])

_KEPT = "bert_examples"


def example(check: str, batch: Mapping[str, Any], **variation: Any) -> Callable[[F], F]:
    """Return a decorator that makes a test try this batch first when it runs the named check.

    Args:
        check: the name of the check.
        batch: the inputs of the batch, by name.
        **variation: the parameters of the check's variation of the batch.

    Raises:
        UnknownNameError: if no check has that name.
        UsageError: if `batch` is not a valid batch.

    Example:
        >>> @example("padding-length", {"input_ids": [[7, 0]], "attention_mask": [[1, 0]]}, tokens=1, id=0)
        ... def test(check):
        ...     check()
        >>> test.bert_examples[0][0]
        'padding-length'
    """
    from conformance.results.example import Example

    named(check)
    kept = Example.of({"batch": batch, "variation": variation})

    def decorate(test: F) -> F:
        getattr(test, "__dict__", {}).setdefault(_KEPT, []).insert(0, (check, kept))
        return test

    return decorate


def examples_of(test: Callable[..., Any] | None, check: str) -> "list[Example]":
    """Return the examples that are attached to a test for a check, in the order of the decorators."""
    return [kept for name, kept in getattr(test, _KEPT, ()) if name == check]
