"""Proposed registrations of unknown modules, with the evidence for each part and the open questions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from conformance.candidates.layouts import LAYER, expanded, is_layered
from conformance.mapping.call import Call
from conformance.mapping.identify import DECODER, WORDS, Identification
from conformance.mapping.signature import Builder, Requirement, requirements
from conformance.mapping.taps import Located
from conformance.mapping.tensors import Tensor
from conformance.model.activations import last_hidden, outputs, parameter_shapes, table
from conformance.model.architecture import Architecture

_EVIDENCE = {
    "value": "by value",
    "shape": "by shape",
    "name": "by name alone, which no value confirms",
    "tie": "by name, since other choices compute the same",
}
_SHAPE_ALONE = "by its shape, which no value confirms"
BUFFER, UNREAD, UNMAPPED = "a buffer", "not read by the forward pass", "nothing in the checkpoint"  # reasons for ignoring a tensor
_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_IN_LAYER = f"bert.encoder.layer.{LAYER}."


@dataclass(frozen=True)
class Held:
    """A tensor of the module, and the parameters that it holds.

    Attributes:
        tensor: the tensor.
        layout: Python source of the layout, with `{}` for the names.
        names: Hugging Face's names of the parameters, with `{layer}`.
        evidence: a key of `_EVIDENCE`.
    """

    tensor: Tensor
    layout: str
    names: tuple[str, ...]
    evidence: str

    def for_tied_tensor(self, name: str) -> "Held":
        """Return the entry for a second tensor, `name`, that holds the same parameters."""
        return replace(self, tensor=replace(self.tensor, name=name), layout=f"tied({self.layout})")


@dataclass(frozen=True)
class Proposal:
    """The parts of a proposed registration.

    Attributes:
        name: name of the factory in the Python module `home`.
        home: import path of the Python module.
        builder: how the module is built.
        call: how the module is called.
        parameters: the module's tensors with the parameters that they hold.
        activations: the located activations.
        unused: patterns of the checkpoint's parameters that the module does not use.
        ignored: the reason for each pattern of state-dict entries that hold no parameter of the checkpoint.
        architecture: architecture with which the module was examined.
        coverage: number of activations that the module computes, and total number.
        has_layers: whether it computes an activation of a layer.
        last: Python expression, in terms of `model`, of the index of the last layer; empty if nothing in the module counts layers.
        returns: the activations that the module returns, in its own result.
        items: number of items that the module returns in a tuple or list, 0 if it returns anything else.
        has_dropout: whether the module has dropout.
        computes: activation function that the module computes, if it is not the architecture's and cannot be given; else empty.
        unknown_results: shapes of returned tensors that are not activations of the network.
        fails_elsewhere: a sentence on the adaptor's error on a network with another number of layers; empty if there is none.
    """

    name: str
    home: str
    builder: Builder
    call: Call
    parameters: tuple[Held, ...]
    activations: tuple[Located, ...]
    unused: tuple[str, ...]
    ignored: Mapping[str, str]
    architecture: Architecture
    coverage: tuple[int, int]
    has_layers: bool
    last: str = ""
    returns: tuple[Located, ...] = ()
    items: int = 0
    has_dropout: bool = False
    computes: str = ""
    unknown_results: tuple[tuple[int, ...], ...] = ()
    fails_elsewhere: str = ""

    @property
    def unmapped(self) -> tuple[str, ...]:
        """The patterns of the parameters that the forward pass may read and that hold none of the checkpoint's."""
        return tuple(name for name, reason in self.ignored.items() if reason == UNMAPPED)

    @property
    def open(self) -> tuple[str, ...]:
        """The open questions, one sentence each."""
        found = [*self.builder.open, *self.call.open]
        if not self.call.takes_mask:
            found.append("no argument of forward was seen to be a mask: it is given none, and attends to padding")
        if self.call.takes_lengths:
            found.append("it takes lengths: a batch with padding before or between its tokens cannot be given to it")
        if self.unmapped:
            more = f" and {len(self.unmapped) - 3} more" if len(self.unmapped) > 3 else ""
            found.append(
                f"{', '.join(self.unmapped[:3])}{more}: nothing of the checkpoint fits; ignored, with the values that `build` gives"
            )
        found += self._by_name
        found += [f"the module returns a tensor of {shape} {self._treated(shape)}" for shape in self.unknown_results]
        if self.returns and not self._returns_output:
            names = ", ".join(name for location in self.returns for name in location.names)
            found.append(f"the module returns {names}, and neither the last hidden state nor the pooled output nor logits")
        found += [self.fails_elsewhere] if self.fails_elsewhere else []
        if not self.has_output:
            found.append("no output was found: the last hidden state or logits; `run` needs one of them in `activations`")
        return tuple(found)

    @property
    def _by_name(self) -> list[str]:
        return [f"{held.tensor.name}: {_EVIDENCE[held.evidence]}" for held in self.parameters if held.evidence in ("name", "tie")]

    @property
    def called(self) -> str:
        """How the module is called, if values confirm another way than the names of its arguments suggest; else empty."""
        if not self.call.as_named:
            return ""
        return f"called as model({self.call.arguments}), with which every layer masks as BERT does; {self.call.as_named}"

    @property
    def guesses(self) -> str:
        """A sentence on what no value confirms, empty if there is nothing; a run on which the module fails repeats it."""
        more = [f"and {len(self._by_name) - 2} more by name"] if len(self._by_name) > 2 else []
        found = [*self.call.open, *self._by_name[:2], *more]
        return f"guessed where `map` saw no value that decides: {'; '.join(found)}" if found else ""

    def _treated(self, shape: tuple[int, ...]) -> str:
        """Return how `run` treats a returned tensor that is no activation of the network."""
        is_compared = last_hidden(self.architecture) in self._exposed and not self._returns_output  # as in `returned_value`
        if is_compared and len(shape) == 3 and shape[-1] == self.architecture.hidden_size:
            return "as wide as the last hidden state but with other values: `run` fails on it unless `call` returns outputs by name"
        return "that is no activation of the network: it is not judged"

    @property
    def differs(self) -> tuple[str, ...]:
        """The places where the module computes something else than BERT, one sentence each; they do not prevent a run."""
        found = []
        if self.computes:
            found.append(
                f"it takes no hidden_act and computes {self.computes}: where the architecture has {self.architecture.hidden_act}, "
                f"`run` reports a mistake; if it is meant to compute {self.computes}, let `supported` accept that alone"
            )
        found += [
            f"{', '.join(location.names)}: the module computes something else there; `run` says what"
            for location in (*self.activations, *self._outputs_by_shape)
            if not location.confirmed
        ]
        return tuple(found)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The conditions on an architecture under which the module can be loaded."""
        used = [name for held in self.parameters for name in held.names]
        return tuple(requirements(self.builder, used, self.architecture, self.computes))

    @property
    def fixed_rates(self) -> tuple[str, ...]:
        """The dropout rates of the architecture that the module, which has dropout, cannot be given."""
        return tuple(name for name in _RATES if self.has_dropout and name not in self.builder.given)

    @property
    def is_trainable(self) -> bool:
        """Whether the module can be judged in training mode, which requires that it has dropout at the architecture's rates."""
        return self.has_dropout and not self.fixed_rates

    @property
    def returned_outputs(self) -> tuple[Located, ...]:
        """The outputs that `call` returns by name: those that the module returns, and that no tap captures at its own result.

        Packed ones are left out: they are compared as the module returns them.
        """
        a, tapped = self.architecture, {n for location in self.activations if not location.tap.path for n in location.names}
        wanted = set(outputs(a)) - tapped - (set() if self.last else {last_hidden(a)})
        return tuple(location for location in self.returns if location.names[0] in wanted and not location.packed)

    @property
    def _outputs_by_shape(self) -> tuple[Located, ...]:
        return tuple(location for location in self.returned_outputs if location.is_by_shape)

    @property
    def _returns_output(self) -> bool:
        """Whether the module returns the last hidden state, or anything that is computed from it."""
        a = self.architecture
        names = list(table(a))
        return any(names.index(n) >= names.index(last_hidden(a)) for location in self.returns for n in location.names)

    @property
    def is_runnable(self) -> bool:
        """Whether the adaptor can be run unchanged: it exposes an output, and the module computes activations of layers.

        Where tensors of the layers are not mapped and parameters of the checkpoint's layers are unused, its weights are wrong.
        """
        is_partial = any(map(is_layered, self.unmapped)) and any(".layer." in name for name in self.unused)
        return self.has_output and self.has_layers and not self.fails_elsewhere and not is_partial

    @property
    def has_output(self) -> bool:
        """Whether the last hidden state or the logits of a head are exposed."""
        return bool(self.returned_outputs) or not self._exposed.isdisjoint(outputs(self.architecture))

    @property
    def _exposed(self) -> set[str]:
        """The names of the located activations, of those in layers that in the last one."""
        return {
            n.replace(LAYER, str(self.architecture.num_hidden_layers - 1)) for location in self.activations for n in location.names
        }

    @property
    def objects(self) -> Mapping[str, Any]:
        """The module's own objects that the adaptor uses, by name."""
        return {**self.builder.objects, **self.call.objects}

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the rows of the table: kind of entry, name in the module, proposed registration, evidence."""
        for held in self.parameters:
            names = ", ".join(n.replace(_IN_LAYER, "… ") for n in held.names)
            yield "parameter", held.tensor.name, held.layout.format(names), _EVIDENCE[held.evidence]
        for location in self.activations:
            evidence = "by value" if location.confirmed else "differs"
            names = ", ".join(n.replace(_IN_LAYER.removeprefix("bert."), "… ") for n in location.names)
            yield "activation", described(location), names, evidence
        for location in self._outputs_by_shape:
            yield "activation", described(location), location.names[0], _SHAPE_ALONE
        for pattern in self.unused:
            yield "unused", "", pattern, "nothing in the module"
        for name, reason in self.ignored.items():
            yield "ignored", name, "", reason
        for each in self.requirements:
            yield "supported", each.lacking, each.reason, "skipped if"
        if self.fixed_rates:
            yield "supported", "in training mode", f"it takes no {' and no '.join(self.fixed_rates)}", "skipped"


def described(location: Located) -> str:
    """Return a description of a tap in words."""
    tap = location.tap
    which = "" if tap.what == "output" else "input of "
    return f"{which}{tap.path or 'the module'}" + (f", {location.arrangement}" if location.arrangement else "")


def held(search: Identification) -> Iterator[Held]:
    """Yield the module's tensors that hold parameters, in the order of its state dict."""
    sources, evidence = search.state.sources, search.state.evidence
    decoder, words = sources.get(DECODER), sources.get(WORDS)
    for tensor in search.tensors.all:
        mine = {n: s for n, s in sources.items() if s.tensor is tensor and n != DECODER}
        if mine:
            form = next(iter(mine.values())).form
            pieces = {s.piece: n.replace(".layer.0.", f".layer.{LAYER}.") for n, s in mine.items()}
            if len(pieces) == form.parts:
                names = tuple(pieces[i] for i in range(form.parts))
                yield Held(tensor, form.text, names, max((evidence[n] for n in mine), key=list(_EVIDENCE).index))
        elif decoder and words and decoder.tensor is tensor:
            yield Held(tensor, decoder.form.text, (WORDS,), evidence[DECODER]).for_tied_tensor(tensor.name)


def unused_patterns(used: Sequence[str], a: Architecture) -> list[str]:
    """Return shell patterns for the checkpoint's unused parameters; one pattern for a module of which no parameter is used."""
    every = [*parameter_shapes(a), "qa_outputs.weight", "qa_outputs.bias"]
    taken = {name for u in used for name in expanded(u, a.num_hidden_layers)}
    found = []
    for group in ("bert.pooler.*", "cls.predictions.*", "cls.seq_relationship.*", "classifier.*", "qa_outputs.*"):
        if not any(fnmatchcase(n, group) for n in taken):
            found.append(group)
    if {"cls.predictions.*", "cls.seq_relationship.*"} <= set(found):
        found = [g for g in found if not g.startswith("cls.")]
        found.insert(1, "cls.*")
    left = [n for n in every if n not in taken and not any(fnmatchcase(n, g) for g in found)]
    return found + list(dict.fromkeys(_anywhere(n) for n in left))


def _anywhere(name: str) -> str:
    parts = name.split(".layer.")
    return f"{parts[0]}.layer.*.{parts[1].partition('.')[2]}" if len(parts) == 2 else name
