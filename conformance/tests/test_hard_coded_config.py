"""Numbers that a candidate hard-codes instead of reading the config: each fails on a golden whose config differs, and is named."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from conformance import Architecture, Result, TorchImplementation, check, load_golden
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.diagnosis import diagnose
from conformance.errors import UnsupportedArchitectureError
from conformance.faults import BY_NAME, FaultContext
from conformance.implementations.hugging_face import hf_eager, hf_sdpa
from conformance.implementations.inner_workings import inner_workings
from conformance.implementations.making_bert import making_bert
from conformance.implementations.torch_encoder import torch_encoder
from conformance.numerics.formats import FORMATS
from conformance.oracle import Network

pytestmark = pytest.mark.usefixtures("one_thread")

UNUSUAL = ("odd-width", "narrow-heads", "position-offset")
DTYPES = ("float32", "bfloat16")


def hard_coding(candidate: TorchImplementation, **numbers: Any) -> TorchImplementation:
    """Return the candidate with these numbers in place of the config's; a function is called with the config."""

    def build(a: Architecture) -> Any:
        return candidate.build(a.with_(**{n: v(a) if callable(v) else v for n, v in numbers.items()}))

    return replace(candidate, build=build)


def _sixty_four_wide(a: Architecture) -> int:
    return max(a.hidden_size // 64, 1)


IN_BERT = hard_coding(making_bert, layer_norm_eps=1e-12)
GELU = hard_coding(inner_workings, hidden_act="gelu")
HEADS_OF_64 = hard_coding(making_bert, num_attention_heads=_sixty_four_wide)
NO_OFFSET = hard_coding(making_bert, position_offset=0)
IGNORED = ": the config's {} is ignored"

# The candidate, the golden on which it fails, the name of the mistake, and the end of its sentence.
Broken = tuple[TorchImplementation, str, str, str]
BROKEN: dict[str, Broken] = {
    "epsilon 1e-12 for 1e-5": (
        IN_BERT, "narrow-heads", "epsilon", "epsilon is 1e-12, the checkpoint says 1e-05" + IGNORED.format("layer_norm_eps"),
    ),
    "epsilon 1e-12 for 1e-3": (
        hard_coding(torch_encoder, layer_norm_eps=1e-12), "odd-width", "epsilon",
        "the checkpoint says 0.001" + IGNORED.format("layer_norm_eps"),
    ),
    "epsilon 3e-4, no default": (
        hard_coding(inner_workings, layer_norm_eps=3e-4), "odd-width", "epsilon", "epsilon is 0.0003, the checkpoint says 0.001",
    ),
    "torch's epsilon": (
        hard_coding(making_bert, layer_norm_eps=1e-5), "tiny", "epsilon", "epsilon is 1e-05, the checkpoint says 1e-12",
    ),
    "GELU for ReLU": (
        GELU, "odd-width", "activation-gelu",
        "the activation is GELU in its erf form, the checkpoint says ReLU" + IGNORED.format("hidden_act"),
    ),
    "GELU's tanh form for ReLU": (
        hard_coding(inner_workings, hidden_act="gelu_new"), "odd-width", "activation-gelu-tanh",
        "the activation is GELU in its tanh form, the checkpoint says ReLU" + IGNORED.format("hidden_act"),
    ),
    "heads of 64, probabilities exposed": (
        HEADS_OF_64, "narrow-heads", "heads-64-wide",
        "every layer, attention.self.context: heads are 64 wide" + IGNORED.format("num_attention_heads"),
    ),
    "heads of 64, all of attention hidden": (
        hard_coding(torch_encoder, num_attention_heads=_sixty_four_wide), "narrow-heads", "heads-64-wide",
        "every layer, attention.self.context: heads are 64 wide" + IGNORED.format("num_attention_heads"),
    ),
    "twelve heads": (
        hard_coding(inner_workings, num_attention_heads=12), "narrow-heads", "heads-twelve",
        "every layer, attention.self.context: there are 12 heads" + IGNORED.format("num_attention_heads"),
    ),
    "no offset": (
        NO_OFFSET, "position-offset", "positions-from-zero",
        "positions start at 0: position_ids of the batch, or the config's position_offset, is ignored",
    ),
    "RoBERTa's offset": (
        hard_coding(inner_workings, position_offset=2), "position-offset", "positions-shifted", "positions start at 2",
    ),
}  # fmt: skip


def _sentences(result: Result) -> dict[str, str]:
    """Return the sentence of each mistake by its name."""
    return {finding.name or "": finding.sentence for finding in result.findings}


@pytest.mark.landing(case=[*[*BROKEN][:5:2], *[*BROKEN][6:10:3], "twelve heads"])
@pytest.mark.parametrize(("case", "dtype"), [*zip(BROKEN, cycle(DTYPES))])
def test_a_hard_coded_number_fails_and_is_named(case: str, dtype: str) -> None:
    candidate, golden, name, said = BROKEN[case]
    result = check(candidate, golden, dtype=dtype)
    assert result.outcome == "fail", result.reason
    sentences = _sentences(result)
    assert list(sentences) == [name]
    assert said in sentences[name]
    assert name != "epsilon" or ("ignored" in sentences[name]) == ("ignored" in said)
    for reason in (v.reason for v in result.origins if v.activation.endswith("probs") and candidate is HEADS_OF_64):
        assert reason.endswith("(batch, head, query, key); the config's num_attention_heads is 6, and here it is 3")


@pytest.mark.landing({"candidate": GELU}, candidate=NO_OFFSET, golden="tiny")
@pytest.mark.parametrize(
    ("candidate", "golden"),
    [(IN_BERT, "tiny"), (HEADS_OF_64, "wide"), (NO_OFFSET, "tiny"), (NO_OFFSET, "narrow-heads"), (GELU, "tiny")],
)
def test_a_hard_coded_number_passes_where_the_config_has_the_same(candidate: Any, golden: str) -> None:
    assert check(candidate, golden).outcome == "pass"


CORRECT = [
    (candidate, golden)
    for golden in UNUSUAL
    for candidate in (making_bert, inner_workings, torch_encoder, hf_eager, hf_sdpa)
    if candidate.supports(load_golden(golden).checkpoint.architecture, "cpu", "float32") is None
]
IN_EITHER_FORMAT = [(*case, dtype) for case, dtype in zip(CORRECT, cycle(DTYPES))]


@pytest.mark.landing(golden="narrow-heads")
@pytest.mark.parametrize(("candidate", "golden", "dtype"), IN_EITHER_FORMAT, ids=lambda v: getattr(v, "name", v))
def test_a_candidate_that_reads_the_config_conforms(candidate: Any, golden: str, dtype: str) -> None:
    result = check(candidate, golden, dtype=dtype)
    assert result.conforms, (result.reason, _sentences(result))


def test_the_fault_of_heads_of_width_64_equals_a_network_with_that_many_heads() -> None:
    given = load_golden("narrow-heads")
    a, batch, attention = given.checkpoint.architecture, given.batches["padded"], "encoder.layer.1.attention.self"
    right, other = (Network(x, given.checkpoint.weights, batch) for x in (a, a.with_(num_attention_heads=3)))
    values = dict(right.walk())
    query, key, value = (values[f"{attention}.{name}"] for name in ("query", "key", "value"))
    step = right.step(f"{attention}.context", values[f"{attention}.dropout"], value)
    applied = BY_NAME["heads-64-wide"].applied(step, FaultContext(right, values, FORMATS["float32"]))
    assert applied is not None
    probs = other.step(f"{attention}.probs", other.step(f"{attention}.scores", query, key).value).value
    np.testing.assert_array_equal(applied.value, other.step(f"{attention}.context", probs, value).value)
    doubled = applied.replaced(parents=(step.parents[0], 2.0 * value))
    np.testing.assert_array_equal(doubled.value, 2.0 * applied.value)
    e = np.random.default_rng(0).standard_normal(step.value.shape)
    of_probs, of_values = applied.jacobians()
    assert not of_probs.adjoint(e).any()
    effect = applied.replaced(parents=(step.parents[0], value + e)).value - applied.value
    assert (e * effect).sum() == pytest.approx((of_values.adjoint(e) * e).sum())


@pytest.mark.parametrize(
    ("golden", "numbers", "name"),
    [
        ("odd-width", {"layer_norm_eps": 1e-5}, "epsilon"),
        ("odd-width", {"hidden_act": "gelu"}, "activation-gelu"),
        ("narrow-heads", {"num_attention_heads": 3}, "heads-64-wide"),
        ("position-offset", {"position_offset": 0}, "positions-from-zero"),
    ],
)
def test_a_hard_coded_number_is_named_from_the_outputs_alone(golden: str, numbers: dict[str, Any], name: str) -> None:
    given = load_golden(golden)
    (batch,) = given.batches.values()
    runner = hard_coding(inner_workings, **numbers).prepare(given.checkpoint, "cpu", "float32")
    last = f"encoder.layer.{given.checkpoint.architecture.num_hidden_layers - 1}.output.LayerNorm"
    diagnosis = diagnose(given.checkpoint, batch, {"last_hidden_state": dict(runner(batch.on("cpu")))[last].numpy()})
    assert {fault.name for fault in diagnosis.explanations[0].faults} == {name}
    assert all(fault.sentence.endswith(" is ignored") for fault in diagnosis.explanations[0].faults)


@pytest.mark.parametrize("law", ["generated-batches", "padding-length", "length-refused"])
def test_the_laws_use_the_number_of_positions_that_an_offset_leaves(law: str) -> None:
    result = run_check(Request.of(making_bert, "position-offset", "cpu", "float32", law))
    assert result.outcome == "pass", result.reason
    if law == "length-refused":
        result = run_check(Request.of(NO_OFFSET, "position-offset", "cpu", "float32", law))
        assert result.outcome == "fail"
        assert "the network has 12 positions" in result.reason


def test_an_offset_leaves_at_least_one_position() -> None:
    a = load_golden("position-offset").checkpoint.architecture
    assert (a.longest, a.with_(position_offset=14).longest) == (12, 1)
    for offset in (15, -1):
        with pytest.raises(UnsupportedArchitectureError, match="position_offset is"):
            a.with_(position_offset=offset)
    config = a.as_dict()
    assert Architecture.from_config({**config, "position_offset": 2}).position_offset == 2
    assert Architecture.from_config({k: v for k, v in config.items() if k != "position_offset"}).position_offset == 0
