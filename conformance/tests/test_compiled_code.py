"""A candidate that is compiled by `torch.compile` is judged compiled."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from conformance.candidates.capture import Tap, captured
from conformance.checks.candidate_stream import yielded
from conformance.results.termination import call_candidate

LENGTHS = range(2, 14)  # more than `torch._dynamo.config.recompile_limit`, 8


class Compiled(nn.Module):
    """Returns 1 where it is compiled and 0 where it is run eagerly; each length is compiled by itself."""

    def __init__(self) -> None:
        """Compile the forward pass without a C++ compiler."""
        super().__init__()
        self.outer = nn.Identity()
        self.compiled = torch.compile(lambda x: x + torch.compiler.is_compiling(), backend="eager", dynamic=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return 1 or 0."""
        return self.outer(self.compiled(x))  # type: ignore[no-any-return]  # a module's call


@pytest.fixture
def module() -> Iterator[Compiled]:
    """Return a compiled module; nothing that was compiled before or here affects other tests."""
    torch.compiler.reset()
    yield Compiled()
    torch.compiler.reset()


def _by_hooks(module: Compiled, x: torch.Tensor) -> torch.Tensor:
    return dict(yielded(lambda: captured(module, {"sum": Tap("outer")}, lambda: module(x) is None or None)))["sum"]


@pytest.mark.parametrize("called", [lambda module, x: call_candidate(lambda: module(x)), _by_hooks], ids=["by a call", "by hooks"])
def test_no_length_of_a_compiled_candidate_is_judged_eagerly(
    module: Compiled, called: Callable[[Compiled, torch.Tensor], torch.Tensor]
) -> None:
    assert [float(called(module, torch.zeros(n))[0]) for n in LENGTHS] == [1.0] * len(LENGTHS)


def test_outside_a_judgement_the_limit_on_recompilation_is_as_the_user_has_set_it(module: Compiled) -> None:
    call_candidate(lambda: module(torch.zeros(1)))
    found = [float(module(torch.zeros(n))[0]) for n in LENGTHS]
    assert found[0] == 1.0
    assert found[-1] == 0.0
