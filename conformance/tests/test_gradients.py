"""The check `gradients`: wrong backward passes are found, placed and named; correct ones pass, unusual as they may be."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from conformance import Checkpoint, ModuleRunner, Tap, TorchBatch, TorchImplementation, captured_with_gradients, load_golden
from conformance.benchmarks.gradients.correct import CORRECT
from conformance.benchmarks.gradients.measure import origins
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward, rewritten
from conformance.checks.backward import backward_passes
from conformance.checks.passes import Pass
from conformance.checks.run import check_values
from conformance.errors import CandidateError, NotApplicable
from conformance.isolation.process import WorkerProcess
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.serve import CandidateWork
from conformance.judge.depth import Depth
from conformance.judge.segment import Segment
from conformance.model.activations import outputs
from conformance.model.gradients import grad
from conformance.numerics.arithmetic import hypotheses
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.result import Result
from implementations.hugging_face import BertWithHeads, HuggingFace, hf_eager, run, run_backward
from implementations.making_bert import making_bert
from implementations.torch_encoder import torch_encoder

Plant = Callable[[Any], None]


def judged(candidate: object, golden: str = "tiny", dtype: str = "float32", source: str = "", depth: Depth = "full") -> Result:
    """From every source, or from one."""

    def passes(*asked: Any) -> Sequence[Pass]:
        return [one for one in backward_passes(*asked) if source in (one.network.source, "")]

    return check_values(candidate, golden, dtype=dtype, passes=passes, depth=depth)


def observed(result: Result) -> set[str]:
    return {v.activation for v in result.verdicts if v.outcome in ("pass", "fail")}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_backward_pass_is_found_placed_and_named(wrong: str) -> None:
    planted = WRONG[wrong]
    assert origins(judged(WithWrongBackward(planted), source="cls.loss")) == dict.fromkeys(planted.at, (planted.named,))


def test_three_wrong_steps_in_two_layers_are_three_origins() -> None:
    class Three(WithWrongBackward):
        def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
            model = super().module(checkpoint, device, dtype)
            WRONG["ReLU's derivative"].plant(model)
            model["bert"].embeddings.token_type_embeddings.weight.requires_grad_(False)
            return model

    assert origins(judged(Three(WRONG["mean detached"]), source="cls.loss")) == {
        "encoder.layer.1.output.dropout.grad": ("gradient-norm-mean-detached",),
        "encoder.layer.1.intermediate.dense.grad": ("gradient-function-relu",),
        "bert.embeddings.token_type_embeddings.weight.grad": ("gradient-missing",),
    }


# Mistakes without a name, chosen by a seed: where the gradient is changed, and how.
_PLACES = {
    "bert.encoder.layer.0.output.dense": {"encoder.layer.0.intermediate.intermediate_act_fn.grad"},
    # The context is seen at the input of this module, behind the change, and is computed from these.
    "bert.encoder.layer.0.attention.output.dense": {f"encoder.layer.0.attention.self.{n}.grad" for n in ("value", "probs")},
    "bert.encoder.layer.1.output.dense": {"encoder.layer.1.intermediate.intermediate_act_fn.grad"},
    "bert.pooler.activation": {"pooler.dense.grad"},
    "cls.predictions.decoder": {"cls.predictions.transform.LayerNorm.grad"},
    "classifier": {"pooler.activation.grad"},
}
_CHANGES: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "one feature stronger": lambda g, at: g * (1.0 + 0.01 * (torch.arange(g.shape[-1]) == at % g.shape[-1])),
    "features rolled": lambda g, at: g.roll(1 + at % (g.shape[-1] - 1), -1),
    "small ones dropped": lambda g, at: torch.where(g.abs() < g.abs().mean() / 2, 0.0, g),
    "clipped": lambda g, at: g.clamp(-g.abs().mean(), g.abs().mean()),
    "rounded to bfloat16": lambda g, at: g.bfloat16().float(),
}


def _unnamed() -> Iterator[tuple[str, str, int]]:
    draw = np.random.default_rng(20)
    for _ in range(10):
        yield str(draw.choice(list(_PLACES))), str(draw.choice(list(_CHANGES))), int(draw.integers(1000))


@pytest.mark.parametrize(("path", "change", "at"), list(_unnamed()))
def test_a_mistake_without_a_name_is_found_and_placed(path: str, change: str, at: int) -> None:
    class Unnamed(HuggingFace):
        def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
            model = super().module(checkpoint, device, dtype)

            def altered(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                return (rewritten(args[0], Tensor.clone, lambda _, w: _CHANGES[change](w, at)), *args[1:])

            model.get_submodule(path).register_forward_pre_hook(altered)
            return model

    source = "classifier.loss" if path == "classifier" else "cls.loss"
    assert set(origins(judged(Unnamed("eager"), source=source))) == _PLACES[path]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "golden"),
    [
        *((name, "tiny") for name in ("hf-eager", "hf-sdpa", "making-bert", "inner-workings", "torch-encoder")),
        ("demystified", "sinusoidal"),
        ("hf-sdpa", "tanh"),
        ("hf-eager", "narrow-heads"),
    ],
)
def test_correct_backward_passes_pass(name: str, golden: str, dtype: str) -> None:
    result = judged(name, golden, dtype)
    assert (result.outcome, result.reason) == ("pass", "")
    assert sum(n.endswith(".grad") for n in observed(result)) > 40


class Changed(HuggingFace):
    """Hugging Face's BERT, changed in a way that changes no gradient but for rounding."""

    def __init__(self, plant: Plant, attention: str = "eager") -> None:
        super().__init__(attention)
        self.plant = plant

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> BertWithHeads:
        model = super().module(checkpoint, device, dtype)
        self.plant(model)
        return model


def _checkpointed(*, reentrant: bool) -> Plant:
    """Layers whose interior is computed again in the backward pass."""

    def plant(model: Any) -> None:
        for layer in model["bert"].encoder.layer:
            feed = layer.feed_forward_chunk
            layer.feed_forward_chunk = partial(checkpointed, feed, use_reentrant=reentrant)

    return plant


def _chunked(model: Any) -> None:
    """The feed-forward network, a few positions at a time."""
    for layer in model["bert"].encoder.layer:
        feed = layer.feed_forward_chunk
        layer.feed_forward_chunk = lambda x, feed=feed: torch.cat([feed(part) for part in x.split(5, 1)], 1)


def _with_padding_learning(model: Any) -> None:
    model["bert"].embeddings.word_embeddings.padding_idx = None


def _norms_by_hand(model: Any) -> None:
    class Norm(nn.Module):
        def __init__(self, norm: nn.LayerNorm) -> None:
            super().__init__()
            self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return self.weight * centred / (centred.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() + self.bias

    for layer in model["bert"].encoder.layer:
        for part in (layer.output, layer.attention.output):
            part.LayerNorm = Norm(part.LayerNorm)


def _functions_by_hand(model: Any) -> None:
    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.5 * (1.0 + torch.erf(x / 2.0**0.5))

    for layer in model["bert"].encoder.layer:
        layer.intermediate.intermediate_act_fn = Gelu()


def _in_place(model: Any) -> None:
    """An output that is overwritten after its gradient was asked for."""
    for layer in model["bert"].encoder.layer:
        layer.output.dropout.register_forward_hook(lambda _m, _a, x: (x * 1.0).add_(0.0))


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_variant_of_the_forward_pass_has_a_correct_backward_pass(name: str) -> None:
    asked = {"dtype": "float32"} if "float32" in CORRECT[name].variant.dtypes else {"dtype": "bfloat16"}
    assert origins(judged(CORRECT[name], source="cls.loss", depth="screen", **asked)) == {}


UNUSUAL: Mapping[str, Plant] = {
    "checkpointed": _checkpointed(reentrant=False),
    "checkpointed, reentrant": _checkpointed(reentrant=True),
    "in chunks": _chunked,
    "without padding_idx": _with_padding_learning,
    "norms by hand": _norms_by_hand,
    "GELU by hand": _functions_by_hand,
    "in place": _in_place,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("how", UNUSUAL)
def test_unusual_correct_backward_passes_pass(how: str, dtype: str) -> None:
    assert origins(judged(Changed(UNUSUAL[how]), dtype=dtype)) == {}


def test_a_mapping_of_the_base_protocol_is_judged_in_whatever_order() -> None:
    class Runner:
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def __call__(self, batch: TorchBatch) -> Mapping[str, Tensor]:
            return dict(run(self.model, batch))

        def gradients(self, batch: TorchBatch, source: str, gradient: Tensor) -> Mapping[str, Any]:
            found = dict(run_backward(self.model, batch, source, gradient))
            return {name: found[name].detach().numpy() for name in sorted(found)}

    class Bare:
        def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Runner:
            return Runner(hf_eager.module(checkpoint, device, dtype))

    result = judged(Bare())
    assert (result.outcome, result.reason) == ("pass", "")


class Answering(HuggingFace):
    """Hugging Face's BERT, whose answers to a backward pass are changed."""

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
def test_what_breaks_the_contract_is_said_of_the_candidate(answer: str) -> None:
    change, outcome, reason = ANSWERS[answer]
    result = judged(Answering(change))
    assert result.outcome == outcome
    assert reason in result.reason


def test_a_gradient_at_padding_fails_with_the_reason_where_it_begins() -> None:
    name = "encoder.layer.0.attention.self.key.grad"

    def leaking(found: dict[str, Any]) -> dict[str, Any]:
        padded = torch.from_numpy(~load_golden("tiny").batches["padded"].mask)
        return {**found, name: found[name] + 0.25 * padded[:, :, None]}

    failed = {v.activation: v.reason for v in judged(Answering(leaking), source="cls.loss").verdicts if v.outcome == "fail"}
    assert failed[name] == "padded positions have a gradient, up to 0.25, where they must have none"


def test_a_gradient_that_is_not_finite_is_one_origin() -> None:
    def broken(found: dict[str, Any]) -> dict[str, Any]:
        name = "encoder.layer.1.intermediate.dense.grad"
        return {**found, name: found[name] * float("inf")}

    assert set(origins(judged(Answering(broken)))) == {"encoder.layer.1.intermediate.dense.grad"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_candidate_in_a_worker_is_judged_as_one_here(dtype: str) -> None:
    with WorkerProcess(CandidateWork) as worker:
        there = judged(RemoteCandidate(worker, "hf-sdpa"), dtype=dtype)
    here = judged("hf-sdpa", dtype=dtype)
    assert [(v.activation, v.batch, v.outcome, v.local) for v in there.verdicts] == [
        (v.activation, v.batch, v.outcome, v.local) for v in here.verdicts
    ]


def test_in_a_worker_without_a_backward_pass_the_check_is_skipped_with_the_reason() -> None:
    with WorkerProcess(CandidateWork) as worker:
        result = judged(RemoteCandidate(worker, "making-bert-traced"))
    assert result.outcome == "skip"
    assert "its runner has no backward pass" in result.reason


def test_a_returned_tensor_that_is_not_reached_has_no_gradient_and_a_tapped_one_has_zeros() -> None:
    """What a compiled graph returns beside its logits is not what these are computed from."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def forward() -> dict[str, Tensor]:
        hidden = net[0](torch.ones(1, 2))
        return {"y": net[1](hidden.detach()), "copy": hidden.clone()}

    found = dict(captured_with_gradients(net, {"hidden": Tap("0")}, forward, "y", torch.ones(1, 2)))
    assert "copy" in found
    assert "copy.grad" not in found
    assert not found["hidden.grad"].any()
    assert not found["0.weight.grad"].any()


def test_without_a_backward_pass_the_check_is_skipped_with_the_reason() -> None:
    def prepare(checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        model = hf_eager.module(checkpoint, device, dtype)
        return ModuleRunner(model, partial(run, model))

    result = judged(prepare)
    assert result.outcome == "skip"
    assert "its runner has no backward pass" in result.reason


def test_a_forward_pass_that_records_nothing_is_skipped_with_the_reason() -> None:
    def without(model: Any) -> None:
        model.forward = torch.no_grad()(model.forward)

    result = judged(Changed(without))
    assert result.outcome == "skip"
    assert "was computed without a record for a backward pass" in result.reason


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


def test_without_a_loss_the_backward_pass_starts_from_the_hidden_state() -> None:
    golden = load_golden("tiny")
    last = outputs(golden.checkpoint.architecture)[0]
    found = observed(judged(torch_encoder))
    assert f"{last}.grad" in found
    assert "bert.embeddings.word_embeddings.weight.grad" in found


def test_nothing_is_left_behind() -> None:
    golden = load_golden("tiny")
    model = hf_eager.module(golden.checkpoint)
    kept = torch.ones_like(model["classifier"].bias)
    model["classifier"].bias.grad = kept
    batch = golden.batches["padded"].on("cpu")
    assert list(run_backward(model, batch, "classifier.loss", torch.ones(())))
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"classifier.bias"}
    assert model["classifier"].bias.grad is kept
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_source_that_is_not_there_is_an_error() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    found = captured_with_gradients(net, {"y": Tap("0")}, lambda: net(torch.ones(1, 2)) is None or None, "z", torch.ones(1, 2))
    with pytest.raises(CandidateError, match="z, from which the backward pass is to start, is neither tapped nor returned"):
        list(found)


def test_the_source_is_the_activation_as_it_is_shown() -> None:
    """Here features first, and in float64: the gradient is given in the layout of the activation."""
    net = nn.Sequential(nn.Linear(2, 4)).double()
    upstream = torch.arange(12.0).reshape(4, 3)

    def forward() -> None:
        net(torch.ones(3, 2, dtype=torch.float64))

    found = dict(captured_with_gradients(net, {"y": Tap("0")}, forward, "y", upstream, show=lambda k, t: [(k, t.T)]))
    assert torch.equal(found["y.grad"], upstream.double())
    assert torch.equal(found["0.bias.grad"], upstream.double().sum(1))


def test_the_gradient_mode_is_that_of_the_caller_while_results_are_read() -> None:
    golden = load_golden("tiny")
    model = hf_eager.module(golden.checkpoint)
    stream = run_backward(model, golden.batches["padded"].on("cpu"), "classifier.loss", torch.ones(()))
    with torch.no_grad():
        next(stream)
        assert not torch.is_grad_enabled()
    model["classifier"].bias.grad = torch.ones_like(model["classifier"].bias)
    assert list(stream)
    assert model["classifier"].bias.grad is not None


def test_what_is_shown_by_more_than_a_rearrangement_has_no_gradient_to_be_judged() -> None:
    net = nn.Sequential(nn.Linear(2, 4))

    def gradients(show: Callable[[str, Tensor], Any]) -> set[str]:
        taps, ones = {"y": Tap("0"), "z": Tap("0")}, torch.ones(1, 4)

        def forward() -> None:
            net(torch.ones(1, 2))

        def shown(key: str, tensor: Tensor) -> Any:
            return [(key, tensor)] if key == "z" else show(key, tensor)

        found = captured_with_gradients(net, taps, forward, "z", ones, show=shown)
        return {name for name, _ in found if name.endswith(".grad")}

    assert "a.grad" in gradients(lambda _, t: [("a", t[:, :2]), ("b", t[:, 2:])])
    assert "a.grad" in gradients(lambda _, t: [("a", t.T)])
    assert "a.grad" not in gradients(lambda _, t: [("a", t * 2.0)])
    assert "a.grad" not in gradients(lambda _, t: [("a", t[:, :2])])


def test_batches_that_attend_to_the_padding_token_are_left_out() -> None:
    golden = load_golden("odd-width")
    with pytest.raises(NotApplicable, match="attends to the token 0"):
        backward_passes(HuggingFace("eager"), golden, Case("hf-eager", golden.name))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_error_that_a_row_of_hidden_scores_has_in_common_is_summed_with_its_sign(dtype: str) -> None:
    """Sigma against the exact variance of single elements, Σ v (Jᵀ e)²; keys with much in common add a row's errors up."""
    golden = load_golden("tiny")
    weights, key = dict(golden.checkpoint.weights), "bert.encoder.layer.1.attention.self.key.bias"
    weights[key] = weights[key] + 8.0
    network = Network(golden.checkpoint.architecture, weights, golden.batches["padded"], source="cls.loss")
    scores, query = (grad(f"encoder.layer.1.attention.self.{name}") for name in ("scores", "query"))
    segment = Segment(network, query, {name: value for name, value in network.walk() if name != scores})
    assert list(segment.steps) == [scores, query]
    for hypothesis in hypotheses(dtype)[:3]:
        found = segment.propagate({}, hypothesis)
        for place in ((0, 0, 0), (0, 5, 9), (2, 8, 31), (4, 3, 17)):
            direction = np.zeros(found.shape)
            direction[place] = 1.0
            exact, _ = segment.projected(direction, hypothesis, apart=True)
            assert found[place] == pytest.approx(exact, rel=1e-6)


def test_gradients_of_layouts_are_those_of_the_checkpoints_parameters() -> None:
    """Fused, transposed and tied parameters, taken apart again."""
    assert isinstance(torch_encoder, TorchImplementation)
    names = {n for n in observed(judged(torch_encoder)) if n.startswith("bert.")}
    assert {f"bert.encoder.layer.0.attention.self.{part}.weight.grad" for part in ("query", "key", "value")} <= names
