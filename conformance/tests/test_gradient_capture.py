"""How a candidate is asked for a backward pass, what it must return, and the messages where it does not."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance import Checkpoint, ModuleRunner, Tap, TorchBatch, captured_with_gradients, load_golden
from conformance.benchmarks.gradients.measure import origins
from conformance.implementations.hugging_face import HuggingFace, hf_eager, run, run_backward
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.model.activations import outputs
from conformance.tests.judged_gradients import Changed, judged, observed


def test_a_mapping_in_any_order_from_a_plain_runner_is_judged() -> None:
    def prepare(*case: Any) -> Any:
        model = hf_eager.module(*case)

        def runner(batch: TorchBatch) -> Mapping[str, Tensor]:
            return dict(run(model, batch))

        def gradients(*case: Any) -> Mapping[str, Any]:
            by_name = dict(run_backward(model, *case))
            return {name: by_name[name].detach().numpy() for name in sorted(by_name)}

        runner.gradients = gradients  # type: ignore[attr-defined]
        return runner

    result = judged(prepare)
    assert (result.outcome, result.reason) == ("pass", "")


class Answering(HuggingFace):
    """Hugging Face's BERT whose results of the backward pass are changed."""

    def __init__(self, change: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__("eager")
        self.change = change

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> ModuleRunner:
        runner = super().prepare(checkpoint, device, dtype)
        assert runner.gradients is not None
        gradients = runner.gradients
        return replace(runner, gradients=lambda *asked: self.change(dict(gradients(*asked))))


BIAS = "bert.pooler.dense.bias.grad"
ANSWERS: Mapping[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "raises": (lambda _: 1 / 0, "crash", "ZeroDivisionError"),
    "no mapping": (lambda _: 3, "fail", "a runner returns a mapping or an iterable of pairs, not int"),
    "no gradient": (
        lambda found: {n: v for n, v in found.items() if not n.endswith(".grad")}, "fail", "no gradient is exposed: a backward pass"
    ),
    "an unknown name": (lambda found: {**found, "pooler.gradient": found[BIAS]}, "fail", "the first at pooler.gradient"),
    "a wrong shape": (lambda found: {**found, BIAS: found[BIAS][:3]}, "fail", f"the first at {BIAS}"),
    "another dtype": (lambda found: {**found, BIAS: found[BIAS].double()}, "fail", f"the first at {BIAS}"),
    "not finite": (lambda found: {**found, BIAS: found[BIAS] * float("nan")}, "fail", f"the first at {BIAS}"),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_broken_contract_is_reported_as_the_candidates_failure(answer: str) -> None:
    change, outcome, reason = ANSWERS[answer]
    result = judged(Answering(change))
    assert result.outcome == outcome
    assert reason in result.reason


def _without_gradients(checkpoint: Checkpoint, device: str, dtype: str) -> ModuleRunner:
    model = hf_eager.module(checkpoint, device, dtype)
    return ModuleRunner(model, partial(run, model))


def _without_autograd(model: Any) -> None:
    model.forward = torch.no_grad()(model.forward)


def test_a_candidate_in_a_worker_is_judged_as_in_this_process_and_skipped_without_a_backward_pass() -> None:
    with WorkerProcess(CandidateWork) as worker:
        there = judged(RemoteCandidate(worker, "hf-sdpa"), dtype="bfloat16", source="cls.loss")
        traced = RemoteCandidate(worker, "making-bert-traced")
        for without, reason in (
            (traced, "its runner has no backward pass"),
            (_without_gradients, "its runner has no backward pass"),
            (Changed(_without_autograd), "was computed without a record for a backward pass"),
        ):
            skipped = judged(without)
            assert (skipped.outcome, reason in skipped.reason) == ("skip", True)
    assert there.verdicts
    assert there.verdicts == judged("hf-sdpa", dtype="bfloat16", source="cls.loss").verdicts


def test_a_frozen_parameter_fails_unless_it_is_declared() -> None:
    def frozen(a: Any) -> nn.Module:
        model = making_bert.build(a)
        model.get_parameter("embedding.token_type_embedding.weight").requires_grad_(False)
        return model

    undeclared = replace(making_bert, build=frozen)
    assert origins(judged(undeclared)) == {"bert.embeddings.token_type_embeddings.weight.grad": ("gradient-missing",)}
    declared = judged(replace(undeclared, frozen=("embedding.token_type_embedding.weight",)))
    assert (declared.outcome, declared.reason) == ("pass", "")
    assert "bert.embeddings.token_type_embeddings.weight.grad" not in observed(declared)


def test_without_a_loss_the_backward_pass_starts_from_the_hidden_state_and_fused_parameters_are_unpacked() -> None:
    gradients = observed(judged(torch_encoder))
    assert f"{outputs(load_golden('tiny').checkpoint.architecture)[0]}.grad" in gradients
    assert "bert.embeddings.word_embeddings.weight.grad" in gradients
    assert {f"bert.encoder.layer.0.attention.self.{part}.weight.grad" for part in ("query", "key", "value")} <= gradients


def test_no_hooks_or_gradients_remain_and_the_callers_gradient_mode_is_unchanged_while_results_are_read() -> None:
    golden = load_golden("tiny")
    model = hf_eager.module(golden.checkpoint)
    kept = torch.ones_like(model["classifier"].bias)
    model["classifier"].bias.grad = kept
    stream = run_backward(model, golden.batches["padded"].on("cpu"), "classifier.loss", torch.ones(()))
    with torch.no_grad():
        next(stream)
        assert not torch.is_grad_enabled()
    assert list(stream)
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"classifier.bias"}
    assert model["classifier"].bias.grad is kept
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_source_is_the_activation_in_the_layout_in_which_it_is_shown() -> None:
    """Here the activation is shown features first and in float64; the gradient is given in the activation's layout."""
    net = nn.Sequential(nn.Linear(2, 4)).double()
    upstream = torch.arange(12.0).reshape(4, 3)

    def forward() -> None:
        net(torch.ones(3, 2, dtype=torch.float64))

    found = dict(captured_with_gradients(net, {"y": Tap("0")}, forward, "y", upstream, show=lambda k, t: [(k, t.T)]))
    assert torch.equal(found["y.grad"], upstream.double())
    assert torch.equal(found["0.bias.grad"], upstream.double().sum(1))


def _doubled_in_place(tensor: Tensor) -> list[tuple[str, Tensor]]:
    tensor.data.mul_(2.0)
    return [("a", tensor)]


SHOWN: Mapping[str, tuple[Callable[[Tensor], Any], bool]] = {
    "as it is": (lambda t: [("a", t)], True),
    "in two halves": (lambda t: [("a", t[:, :2]), ("b", t[:, 2:])], True),
    "transposed": (lambda t: [("a", t.T)], True),
    "doubled": (lambda t: [("a", t * 2.0)], False),
    "doubled in place": (_doubled_in_place, False),
    "limited": (lambda t: [("a", t if t.abs().max() <= 1.0 else t / t.abs().max())], False),
    "in part": (lambda t: [("a", t[:, :2])], False),
}


@pytest.mark.parametrize("how", SHOWN)
def test_an_activation_shown_by_more_than_a_rearrangement_has_no_judged_gradient(how: str) -> None:
    net, (shown, has_gradient) = nn.Sequential(nn.Linear(2, 4)), SHOWN[how]

    def show(key: str, tensor: Tensor) -> Any:
        return [(key, tensor)] if key == "z" else shown(tensor)

    taps, inputs = {"y": Tap("0"), "z": Tap("0")}, torch.ones(1, 2)
    given = captured_with_gradients(net, taps, lambda: net(inputs) is None or None, "z", torch.ones(1, 4), show=show)
    names = {name for name, _ in given}
    assert {"a", "z.grad", "0.weight.grad", "0.bias.grad"} <= names
    assert ("a.grad" in names) is has_gradient


def test_sparse_gradients_of_embeddings_are_judged() -> None:
    def sparse(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = True

    result = judged(Changed(sparse))
    assert (result.outcome, result.reason) == ("pass", "")
