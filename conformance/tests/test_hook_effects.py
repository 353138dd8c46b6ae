"""A candidate that hooks change is also judged without them, as its users run it, and one that is compiled is judged compiled."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import Architecture, Tap, TorchImplementation, captured, check
from conformance.candidates.registry import load_implementation
from conformance.checks.contract import yielded
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import BertOfTorch, call, torch_encoder, torch_encoder_fast
from conformance.mapping.mapped import MappedModule
from conformance.results.termination import call_candidate

LAST = "encoder.layer.1.output.LayerNorm"
WRONG = 1.001  # factor of outputs on the path that no hook sees


class Wrapped(nn.Module):
    """A module whose outputs are multiplied by a number that depends on how it is run."""

    def __init__(self, module: nn.Module, factor: Callable[[nn.Module], float]) -> None:
        super().__init__()
        self.module, self.factor = module, factor

    def forward(self, *given: Tensor) -> Tensor:
        return self.module(*given) * self.factor(self)  # type: ignore[no-any-return]  # a module's call


def _under_compile(module: nn.Module) -> float:
    return WRONG if torch.compiler.is_compiling() else 1.0


def _without_hooks(module: nn.Module) -> float:
    return 1.0 if any(part._forward_hooks for part in module.modules()) else WRONG


def _right(module: nn.Module) -> float:
    return 1.0


def _candidate(factor: Callable[[nn.Module], float], finish: Callable[[nn.Module], Any]) -> TorchImplementation:
    """Return torch's encoder, with taps on its norms and on its embeddings."""

    def build(a: Any) -> nn.Module:
        module = Wrapped(BertOfTorch(a, nested=False), factor)
        return finish(module) or module

    def run(module: Any, batch: Any) -> dict[str, Tensor]:
        b = batch.filled()
        return {LAST: module(b.input_ids, b.token_type_ids, b.attention_mask)}

    inner = {f"module.{ours}": theirs for ours, theirs in torch_encoder.parameters.items()}
    taps = {
        "module.embeddings.norm": "embeddings.LayerNorm",
        "module.encoder.layers.{layer}.norm1": "encoder.layer.{layer}.attention.output.LayerNorm",
    }
    return TorchImplementation(build, inner, taps, run, torch_encoder.unused)


def _compiled(module: nn.Module) -> None:
    torch.compiler.reset()
    module.compile(backend="eager", fullgraph=True)


def _forward_compiled(module: nn.Module) -> None:
    torch.compiler.reset()
    module.forward = torch.compile(module.forward, backend="eager", fullgraph=True)


def _function_compiled(module: nn.Module) -> None:
    """Let the forward pass call a function under torch.compile, so that no module is compiled."""
    torch.compiler.reset()
    run = torch.compile(module.forward, backend="eager", fullgraph=True)
    module.forward = lambda *given: run(*given)


PLAIN: Callable[[nn.Module], Any] = lambda module: None  # noqa: E731


@pytest.mark.landing(finish=_compiled)
@pytest.mark.parametrize("finish", [_compiled, _forward_compiled, _function_compiled])
def test_a_mistake_in_compiled_code_alone_is_found(finish: Callable[[nn.Module], Any]) -> None:
    wrong = _candidate(_under_compile, finish)
    assert wrong.unobserved is not wrong
    result = check(wrong, "tiny")
    assert (result.outcome, result.case.check, [v.activation for v in result.origins]) == ("fail", "outputs", [LAST])


@pytest.mark.landing(finish=_compiled)
@pytest.mark.parametrize("finish", [_compiled, _forward_compiled, _function_compiled])
def test_a_correct_module_compiled_as_one_graph_conforms_with_its_interior_judged(finish: Callable[[nn.Module], Any]) -> None:
    right = _candidate(_right, finish)
    result = check(right, "tiny")
    assert result.conforms, result.reason
    assert "encoder.layer.0.attention.output.LayerNorm" in {v.activation for v in result.verdicts if v.outcome == "pass"}
    assert check(right, "tiny", check="outputs").conforms


def test_a_mistake_on_a_path_that_is_taken_only_without_hooks_is_found() -> None:
    assert check(_candidate(_without_hooks, PLAIN), "tiny").case.check == "outputs"


def test_only_a_module_that_hooks_may_change_is_judged_twice() -> None:
    assert making_bert.unobserved is making_bert
    assert torch_encoder.unobserved is torch_encoder  # it returns no output by name: its users are those of the regular path
    assert torch_encoder_fast.unobserved is torch_encoder_fast  # no hook is inside its layers
    tapped = TorchImplementation(
        torch_encoder_fast.build, torch_encoder.parameters, torch_encoder.activations, call, torch_encoder.unused
    )
    assert tapped.unobserved is not tapped  # its fast path computes another GELU on CUDA


class Compiled(BertOfTorch):
    """A class to be mapped, whose instances are compiled as one graph and wrong under torch.compile."""

    def __init__(self, vocab_size: int, hidden_size: int, num_hidden_layers: int, num_attention_heads: int) -> None:
        super().__init__(
            Architecture(vocab_size, hidden_size, num_hidden_layers, num_attention_heads, 4 * hidden_size, 64), nested=False
        )
        _compiled(self)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, token_type_ids, attention_mask) * _under_compile(self)


def test_a_mapped_class_is_judged_without_hooks_as_well() -> None:
    mapped: Any = load_implementation(MappedModule(Compiled, "Compiled"))
    assert mapped.unobserved is not mapped
    assert mapped.unobserved.unobserved is mapped.unobserved


LENGTHS = range(2, 14)  # more than `torch._dynamo.config.recompile_limit`, 8


class Counting(nn.Module):
    """Returns 1 where it is compiled and 0 where it is run eagerly; each length is compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Identity()
        self.compiled = torch.compile(lambda x: x + torch.compiler.is_compiling(), backend="eager", dynamic=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.compiled(x))  # type: ignore[no-any-return]  # a module's call


@pytest.fixture
def module() -> Iterator[Counting]:
    """Return a compiled module; nothing that was compiled before or here affects other tests."""
    torch.compiler.reset()
    yield Counting()
    torch.compiler.reset()


def _by_hooks(module: Counting, x: torch.Tensor) -> torch.Tensor:
    return dict(yielded(lambda: captured(module, {"sum": Tap("outer")}, lambda: module(x) is None or None)))["sum"]


@pytest.mark.parametrize("called", [lambda module, x: call_candidate(lambda: module(x)), _by_hooks], ids=["by a call", "by hooks"])
def test_no_length_of_a_compiled_candidate_is_judged_eagerly(
    module: Counting, called: Callable[[Counting, torch.Tensor], torch.Tensor]
) -> None:
    assert [float(called(module, torch.zeros(n))[0]) for n in LENGTHS] == [1.0] * len(LENGTHS)


def test_outside_a_judgement_the_limit_on_recompilation_is_as_the_user_has_set_it(module: Counting) -> None:
    call_candidate(lambda: module(torch.zeros(1)))
    found = [float(module(torch.zeros(n))[0]) for n in LENGTHS]
    assert found[0] == 1.0
    assert found[-1] == 0.0
