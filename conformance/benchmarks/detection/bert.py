"""A BERT that is run step by step from its expressions (`equations`), any of which a candidate may have changed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from conformance.benchmarks.detection import equations
from conformance.benchmarks.detection.equations import Change, Expression, Step, Wide
from conformance.benchmarks.detection.tools import evaluated, sinusoids, widened
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL, TorchBatch
from conformance.model.checkpoint import Checkpoint

Values = dict[str, Any]
DTYPES = ("float64", "float32", "bfloat16", "float16")


def prefix(layer: int | None) -> str:
    """Return what the names of a layer's activations begin with; nothing for the embeddings (−1) and the heads (None)."""
    return "" if layer is None or layer < 0 else f"encoder.layer.{layer}."


class Parameters(dict[str, Any]):
    """The parameters of a step, as attributes too; all at once as `**p.step`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@dataclass(frozen=True)
class Bert:
    """The network with its weights, run on batches.

    Attributes:
        architecture: the architecture.
        weights: the parameters, by Hugging Face's names.
        dtype: the format that it computes in.
        changes: what differs from a right BERT; a later change of a step refers to an earlier one as `right()`.
        instead: values by the names of activations, with which later steps go on in place of the results.
    """

    architecture: Architecture
    weights: Mapping[str, Tensor]
    dtype: torch.dtype
    changes: Sequence[Change] = ()
    instead: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def steps(self) -> dict[int | None, tuple[Step, ...]]:
        """The steps of each layer, of the embeddings (-1) and of the heads (None)."""
        a = self.architecture
        every: dict[int | None, tuple[Step, ...]] = dict.fromkeys(range(a.num_hidden_layers), equations.layer(a))
        return {-1: equations.embeddings(a), **every, None: tuple(equations.heads(a))}

    @cached_property
    def changed(self) -> dict[tuple[str, int | None], list[Expression]]:
        """The expressions that replace that of a step, by its name and layer."""
        places: dict[tuple[str, int | None], list[Expression]] = {}
        for change in self.changes:
            turns = cycle(change.expressions)
            chosen = (
                set(self.steps) if change.layers is None else equations.chosen(change.layers, self.architecture.num_hidden_layers)
            )
            for layer in [layer for layer in self.steps if layer in chosen]:
                for step in self.steps[layer]:
                    if step.name in change.steps and (change.step != "norms" or step.expression == equations.NORM):
                        places.setdefault((step.name, layer), []).append(next(turns))
        return places

    @cached_property
    def sizes(self) -> Values:
        """What all steps may refer to, apart from the batch."""
        a = self.architecture
        heads = a.num_attention_heads

        def split(x: Tensor) -> Tensor:
            """(B, S, H) -> (B, h, S, d)."""
            return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)

        def in_turns(x: Tensor) -> Tensor:
            """(B, S, H) -> (B, h, S, d), with feature i going to head i mod h."""
            return x.view(*x.shape[:-1], -1, heads).permute(0, 3, 1, 2)

        names: Values = {"a": a, "heads": heads, "d": a.head_size, "H": a.hidden_size, "L": a.num_hidden_layers}
        names |= {"act": a.hidden_act, "root": math.sqrt(a.head_size), "eps": a.layer_norm_eps, "dtype": self.dtype}
        return names | {"split": split, "in_turns": in_turns, "reduction": "mean", "stored": self.stored}

    @cached_property
    def stored(self) -> list[SimpleNamespace]:
        """The parameters of each layer's steps."""
        return [
            SimpleNamespace(**{step.name: self.parameters(step, layer) for step in self.steps[layer]})
            for layer in range(self.architecture.num_hidden_layers)
        ]

    def parameters(self, step: Step, layer: int | None) -> Parameters:
        """Return the parameters of a step; none if it has none."""
        if step.name == "position" and self.architecture.position_embedding_type == "sinusoidal":
            a = self.architecture
            table = sinusoids(a.max_position_embeddings, a.hidden_size)
            return Parameters(weight=table.to(self.weights[WORDS].device, self.dtype))
        name = prefix(layer) + (step.parameters or step.activation)
        if not name.startswith(("cls.", "classifier", "qa_outputs")):
            name = f"bert.{name}"
        parameters = {kind: self.weights[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in self.weights}
        if step.activation == "cls.predictions.decoder":
            tied = {"weight": self.weights[WORDS]} if "masked_lm" in self.architecture.heads else {}
            parameters |= tied | {"bias": self.weights["cls.predictions.bias"]}
        return Parameters(parameters)

    def __call__(self, batch: TorchBatch, positions: Tensor | None = None) -> dict[str, Tensor]:
        """Return the activations of a batch, by name.

        Args:
            batch: the batch.
            positions: the positions of the tokens, if they are not 0, 1, 2, ….
        """
        scope = self.sizes | self._inputs(batch, positions)
        activations: dict[str, Tensor] = {}
        layers = [SimpleNamespace(**self._run(-1, scope, activations))]
        layers[0].handed = layers[0].embeddings
        for layer in range(self.architecture.num_hidden_layers):
            given = scope | {"hidden": layers[-1].handed, "layers": layers, "i": layer}
            layers.append(SimpleNamespace(hidden=layers[-1].handed, **self._run(layer, given, activations)))
        self._run(None, scope | {"hidden": layers[-1].handed, "layers": layers}, activations)
        return activations

    def _inputs(self, batch: TorchBatch, positions: Tensor | None) -> Values:
        full = batch.filled()
        order = torch.arange(full.input_ids.shape[1], device=full.input_ids.device)[None]
        names = (
            "labels",
            "next_sentence_label",
            "class_labels",
            "token_labels",
            "start_positions",
            "end_positions",
            "choice_labels",
        )
        labels = {name: getattr(full, name) for name in names}
        return labels | {
            "ids": full.input_ids,
            "types": full.token_type_ids,
            "mask": full.attention_mask,
            "order": order,
            "positions": (order if positions is None else positions) + self.architecture.position_offset,
        }

    def _run(self, layer: int | None, scope: Values, activations: dict[str, Tensor]) -> Values:
        """Return the results of the steps of a layer by their names; those that are activations are put into `activations`."""
        parameters = {step.name: self.parameters(step, layer) for step in self.steps[layer]}
        results: Values = {"p": SimpleNamespace(**parameters)}
        for step in self.steps[layer]:
            if not all(_labelled(scope[name]) for name in step.labels.split(" and ") if name):
                continue
            of_step = {"again": lambda hidden: self._again(layer, scope | {"hidden": hidden.to(self.dtype)})} | parameters[
                step.name
            ]
            result = self._result(step, layer, scope | results | of_step)
            name = prefix(layer) + step.activation
            if step.name == "runs" and not result:
                return {"handed": scope["hidden"]}
            results[step.name] = self.instead.get(name, result)
            if step.activation:
                activations[name] = result
        return results

    def _again(self, layer: int | None, scope: Values) -> Tensor:
        right: Tensor = replace(self, changes=())._run(layer, scope, {})["output"]
        return right

    def _result(self, step: Step, layer: int | None, scope: Values) -> Any:
        """Return the result of a step: that of the last of its changes, which may refer to the earlier ones."""
        chain: list[Expression] = [step.expression, *self.changed.get((step.name, layer), ())]

        def result(at: int, changed: Values, wide: bool) -> Any:
            expression = chain[at]
            wide = wide or isinstance(expression, Wide)

            def stored(name: str) -> Any:
                if name in changed:
                    return changed[name]
                return evaluated(step.given[name], stored) if name in step.given else scope[name]

            def value(name: str) -> Any:
                if name == "right":
                    return lambda **others: result(at - 1, changed | others, wide)
                return widened(stored(name)) if wide else stored(name)

            return evaluated(expression.formula if isinstance(expression, Wide) else expression, value)

        last = result(len(chain) - 1, {}, False)
        return last.to(self.dtype) if isinstance(last, Tensor) and isinstance(chain[-1], Wide) else last


WORDS = "bert.embeddings.word_embeddings.weight"


def _labelled(labels: Tensor | None) -> bool:
    """Return whether there is any label to compute a loss from."""
    return labels is not None and bool((labels != IGNORED_LABEL).any())


def everything(name: str) -> bool:
    """Return True: every activation is exposed."""
    return True


@dataclass(frozen=True)
class Candidate:
    """A candidate implementation, with changes.

    Attributes:
        changes: what differs from a right BERT; a sequence of changes counts as its changes.
        exposes: whether an activation of the given name is exposed.
        computes: another dtype to compute in; exposed values are rounded to the requested dtype.
    """

    changes: Sequence[Change | Iterable[Change]] = ()
    exposes: Callable[[str], bool] = everything
    computes: str | None = None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Tensor]]:
        """Return a runner of the changed network, whose parameters are rounded to `dtype`."""
        return self.runner(self.build(checkpoint, device, dtype), dtype)

    def runner(self, bert: Bert, dtype: str) -> Callable[..., dict[str, Tensor]]:
        """Return a runner of the network that returns the exposed results of its steps."""

        def run(batch: TorchBatch, positions: Tensor | None = None) -> dict[str, Tensor]:
            with torch.no_grad():
                results = bert(batch, positions)
            return {name: result.to(getattr(torch, dtype)) for name, result in results.items() if self.exposes(name)}

        return run

    def build(self, checkpoint: Checkpoint, device: str, dtype: str) -> Bert:
        """Return the changed network with the parameters of the checkpoint."""
        computes = getattr(torch, self.computes or dtype)
        weights = {name: value.to(computes) for name, value in checkpoint.state_dict(dtype, device).items()}
        changes = [change for each in self.changes for change in ((each,) if isinstance(each, Change) else each)]
        return Bert(checkpoint.architecture, weights, computes, changes)


def changed(step: str, *expressions: Expression, layers: tuple[int, ...] | str | None = None, wide: bool = False) -> Change:
    """Return a change of a step; several expressions are used in turn, place by place."""
    wrapped = tuple(Wide(e) if wide and not isinstance(e, Wide) else e for e in expressions)
    return Change(step, wrapped, layers)
