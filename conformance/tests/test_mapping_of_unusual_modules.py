"""Modules with unusual traits are mapped by value, or refused with a message that says what to give instead."""

import pytest

from conformance.errors import CandidateError, UsageError
from conformance.mapping.mapped import proposed
from conformance.tests.third_party_models import proposal


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["SparseBert", "NestedBert"])
def test_sparse_and_nested_tensors_inside_a_module_do_not_prevent_its_mapping(name: str) -> None:
    found = proposal(f"unusual:{name}")
    assert found.coverage[0] == found.coverage[1]
    assert found.has_output


@pytest.mark.filterwarnings("ignore")  # of torch.jit.trace
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LazyBert", r"pool\.weight \(2 such tensors in all\) has no values"),
        ("on_meta", r"words\.weight \(53 such tensors in all\) has no values"),
        ("traced", r"forward of .* is a ScriptMethod, whose arguments Python cannot tell"),
        ("UncallableBert", r"forward of UncallableBert is a NoneType"),
    ],
)
def test_a_module_without_values_or_without_a_signature_is_a_usage_error(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        proposal(f"unusual:{name}")


def test_a_type_whose_arguments_python_cannot_tell_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="dict is a type, whose arguments Python cannot tell"):
        proposed(dict, "dict", "builtins")


def test_a_forward_pass_that_exits_the_process_is_reported_as_one_that_fails() -> None:
    with pytest.raises(CandidateError, match=r"(?s)no way of calling it gives a tensor.*SystemExit: 3"):
        proposal("unusual:ExitingBert")
