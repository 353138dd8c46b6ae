"""Identification of a module's tensors with parameters: by shape, by value if shapes are ambiguous, by name if values are.

The module keeps its own random parameters. A hypothesis assigns some of them to the oracle's parameters. The oracle then computes
the next activation, and the hypothesis is confirmed if the module computed the same numbers, in any layout, to within rounding. One
forward pass decides about all parameters. A mistake in the module affects the identification of its own step only: the oracle's
activation is replaced by one of the module's results with the largest cosines with it, if that confirms the following steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product
from typing import Literal

import numpy as np

from conformance.mapping.forward_pass import ForwardPass
from conformance.mapping.tensors import ParameterSource, Tensors
from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.names import words
from conformance.numerics.arithmetic import Arithmetic, representative_hypothesis
from conformance.numerics.formats import Array
from conformance.numerics.machine import this_machine
from conformance.numerics.memo import IdentityKey
from conformance.numerics.thresholds import max_threshold, sidak_share
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.propagation import errors_after
from conformance.oracle.step import Site

Evidence = Literal["value", "shape", "name", "tie", "absent"]
Choice = Mapping[str, ParameterSource]  # sources by Hugging Face's names of the parameters in layer 0
WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"  # Hugging Face's name of the second use of the word embeddings

# Words in the names of an activation's parameters, by the end of the activation's name.
_OF_ACTIVATION = {
    "word_embeddings": "word words token tokens tok vocab wte",
    "position_embeddings": "position positions pos wpe place places",
    "token_type_embeddings": "type types segment segments seg kind kinds",
    "embeddings.LayerNorm": "embedding embeddings embed emb norm ln",
    "self.query": "q query queries wq",
    "self.key": "k key keys wk",
    "self.value": "v value values wv",
    "attention.output.dense": "attention attn o out output proj dense wo merge",
    "attention.output.LayerNorm": "attention attn norm ln 1",
    "intermediate.dense": "intermediate mlp ff ffn up in inner fc expand 1",
    "output.dense": "output mlp ff ffn down out fc proj contract 2",
    "output.LayerNorm": "output mlp ff ffn final norm ln 2",
    "pooler.dense": "pool pooler pooled",
    "transform.dense": "mlm lm transform head predictions dense",
    "transform.LayerNorm": "mlm lm transform head predictions norm ln",
    "predictions.decoder": "mlm lm decoder logits output unembed head",
    "seq_relationship": "nsp next sentence relationship seq pair",
    "classifier": "classifier class classes cls labels",
}
_OF_ROLE = {"weight": "weight w gamma scale kernel g a table", "bias": "bias b beta offset shift"}


@dataclass(frozen=True)
class Value:
    """The value of an activation: the oracle's, with its rounding error, or the module's own.

    Attributes:
        value: the value.
        variance: variance of the rounding error accumulated since the last of the module's own values; 0 for such a value.
        bound: deterministic error bound of the last step.
        matches: whether the module computed the oracle's value.
        is_measured: whether it is the module's own value.
    """

    value: Array
    variance: Array
    bound: Array
    matches: bool
    is_measured: bool = False

    def allowed(self, alpha: float) -> float:
        """Return the largest difference that rounding explains at the false-alarm probability alpha."""
        return float(max_threshold(self.value.size, alpha) * np.sqrt(self.variance.max()) + self.bound.max())


@dataclass(frozen=True)
class State:
    """The state of the identification.

    Attributes:
        sources: source of each identified parameter, by Hugging Face's name in layer 0.
        evidence: evidence for each parameter.
        values: value of each activation computed so far.
    """

    sources: Mapping[str, ParameterSource] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    @property
    def score(self) -> int:
        """The number of activations that the module computes."""
        return sum(v.matches for v in self.values.values())

    @property
    def used(self) -> set[tuple[str, int]]:
        """The keys of the sources in use."""
        return {source.key for source in self.sources.values()}

    def taking(self, choice: Choice, evidence: Evidence, absent: Sequence[str] = ()) -> "State":
        """Return this state with additional parameters: those of `choice`, and `absent` ones."""
        return replace(
            self,
            sources={**self.sources, **choice},
            evidence={**self.evidence, **dict.fromkeys(choice, evidence), **dict.fromkeys(absent, "absent")},
        )


@dataclass(frozen=True)
class Identification:
    """The search for the parameters in one forward pass of a module.

    Attributes:
        tensors: the module's tensors.
        computed: the record of the pass.
        architecture: the architecture of the oracle's network.
        batch: the inputs of the pass.
    """

    tensors: Tensors
    computed: ForwardPass
    architecture: Architecture
    batch: Batch

    @cached_property
    def _arithmetic(self) -> Arithmetic:
        return representative_hypothesis("float32", "cpu", this_machine("cpu").error_bounds).arithmetic

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = parameter_shapes(self.architecture)
        return {**shapes, DECODER: shapes[WORDS]}

    @cached_property
    def rows(self) -> Mapping[str, Activation]:
        """The activations that are searched for, by name: those of the embeddings alone if no tensor is in a layer."""
        has_layers = any(tensor.layered for tensor in self.tensors.all)
        rows = {name: row for name, row in table(self.architecture).items() if row.axes != SCALAR}
        return {name: row for name, row in rows.items() if has_layers or name.startswith("embeddings.")}

    @cached_property
    def alpha(self) -> float:
        """The false-alarm probability per activation."""
        return sidak_share(len(self.rows))

    @cached_property
    def state(self) -> State:
        """The state with every identified parameter and every activation."""
        return self._left_over(self._walked(State(), list(self.rows.values())))

    @property
    def coverage(self) -> tuple[int, int]:
        """The number of activations that the module computes, and the total number: without heads that the module lacks."""
        layers = {name for name, row in table(self.architecture).items() if row.layer is not None and row.axes != SCALAR}
        return self.state.score, len(layers | self.state.values.keys())

    @property
    def computes_layers(self) -> bool:
        """Whether the module computes an activation of a layer."""
        return any(value.matches and self.rows[name].layer is not None for name, value in self.state.values.items())

    @cached_property
    def masked_layers(self) -> int:
        """The number of layers in which the module masks as the oracle does.

        The module computes the oracle's probabilities there, or an activation that the oracle computes from them. An activation
        computed from the module's own values confirms no mask: these values may have a wrong one.
        """
        masked: set[int | None] = set()
        since: dict[str, set[int | None]] = {}  # the layers whose probabilities are in an activation, and not confirmed before it
        for name, value in self.state.values.items():
            row = self.rows[name]
            layers = {row.layer} if name.endswith("self.probs") else set[int | None]()
            layers.update(*(since[parent] for parent in row.parents))
            masked |= layers if value.matches else set()
            since[name] = set() if value.matches or value.is_measured else layers
        return len(masked)

    def _left_over(self, state: State) -> State:
        """Identify parameters without an effect on the results, such as a bias that is not added, by name alone."""
        for row in self.rows.values():
            for role, name in self._named(row).items():
                if state.evidence.get(name) == "absent":
                    free = [s for s in self._sources(name, row) if s.key not in state.used]
                    named = [s for s in free if s.tensor.owner == self._owner(state, row) or score(s.tensor.name, row, role) > 1]
                    if named:
                        state = state.taking({name: max(named, key=lambda s: score(s.tensor.name, row, role))}, "name")
        return state

    def _owner(self, state: State, row: Activation) -> str | None:
        """Return the path of the module that holds an identified parameter of the row; None if there is none."""
        return next((state.sources[n].tensor.owner for n in self._named(row).values() if n in state.sources), None)

    @cached_property
    def _span(self) -> int:
        """The number of activations that the search looks ahead: those of one layer."""
        return sum(row.layer == 0 for row in self.rows.values())

    def _walked(self, state: State, rows: Sequence[Activation], *, look_ahead: bool = True) -> State:
        """Process the rows in order; the parameters of query, key and value are chosen together."""
        for number, row in enumerate(rows):
            if any(parent not in state.values for parent in row.parents):
                continue
            if row.name.endswith("self.query") and not set(self._named(row).values()) <= state.evidence.keys():
                state = self._attention(state, rows[number : number + self._span])
            ways = list(self._ways(state, row)) if look_ahead else [self._advanced(state, row)]
            state = (
                ways[0]
                if len(ways) == 1
                else max(ways, key=lambda way: self._promise(way, rows[number + 1 : number + 1 + self._span]))
            )
        return state

    def _promise(self, state: State, rest: Sequence[Activation]) -> int:
        """Return the number of the next activations that the module computes if a hypothesis is correct."""
        values = self._walked(state, rest, look_ahead=False).values
        return sum(values[row.name].matches for row in rest if row.name in values and row.kind != "copy")

    def _ways(self, state: State, row: Activation) -> Iterator[State]:
        """Yield states that include this row's activation.

        The first has the oracle's value. Others have a bias that the module adds later, or the module's own value.
        """
        advanced = self._advanced(state, row)
        yield advanced
        lacking = [n for n in self._named(row).values() if advanced.evidence.get(n) == "absent" and n not in state.evidence]
        for name in lacking:
            for source in self._sources(name, row):
                if source.key not in advanced.used:
                    with_it = advanced.taking({name: source}, "value")
                    yield replace(with_it, values={**with_it.values, row.name: self._value(with_it, row)})
        if row.name in advanced.values and not advanced.values[row.name].matches:
            yield from self._measured(advanced, row)

    def _advanced(self, state: State, row: Activation) -> State:
        """Return the state with the oracle's value of this row's activation, and with its parameters if they were not yet."""
        names = self._named(row).values()
        if names and not set(names) <= state.evidence.keys():
            options = list(self._options(state, row))
            fitting = [o for o in options if self._value(state.taking(o, "value"), row).matches]
            if fitting:
                state = state.taking(
                    fitting[0], "tie" if self._differ(fitting) else "value", [n for n in names if n not in fitting[0]]
                )
            elif _is_head(row) and not (options and self._is_named(options[0], row)):
                return state  # the module does not have this head
            else:
                choice: Choice = options[0] if options else {}
                evidence: Evidence = "name" if self._differ(options) else "shape"
                state = state.taking(choice, evidence, [n for n in names if n not in choice])
        return replace(state, values={**state.values, row.name: self._value(state, row)})

    def _value(self, state: State, row: Activation) -> Value:
        """Return the oracle's value of an activation, computed from its parents, and whether the module computed it."""
        parents = [state.values[p] for p in row.parents]
        if row.kind == "copy":
            return parents[0]
        sources = {role: state.sources.get(name) for role, name in self._named(row).items()}
        # The search ahead computes the same step again for most of the next rows.
        key = row.name, *map(IdentityKey, (*parents, *sources.values()))
        if key not in self._computed:
            self._computed[key] = self._computed_value(row, parents, sources)
        return self._computed[key]

    @cached_property
    def _computed(self) -> dict[tuple[object, ...], Value]:
        return {}

    def _computed_value(self, row: Activation, parents: Sequence[Value], sources: Mapping[str, ParameterSource | None]) -> Value:
        shapes = {role: self._shapes[name] for role, name in self._named(row).items()}
        parameters = {role: np.zeros(shapes[role]) if of is None else of.of(row.layer) for role, of in sources.items()}
        step = EQUATIONS[row.kind](Site(row, self.architecture, parameters, self.batch), *(p.value for p in parents))
        own = step.roundings(self._arithmetic)
        errors = [CorrelatedErrors(np.broadcast_to(p.variance + p.bound**2, p.value.shape)) for p in parents]
        computed = Value(step.value, errors_after(step, errors, own).variance, np.asarray(own.bound), False)
        forms = [computed.value, *([computed.value[0]] if row.is_same_for_all_rows else [])]
        forms += (
            [computed.value[self.batch.mask]] if computed.value.shape[:2] == self.batch.mask.shape else []
        )  # packed, without padding
        allowed = computed.allowed(self.alpha)
        is_constant = float(np.ptp(computed.value)) <= allowed  # as what is computed from zeros, which any module has
        return replace(computed, matches=not is_constant and any(self.computed.operations.has(form, allowed) for form in forms))

    def _measured(self, state: State, row: Activation) -> Iterator[State]:
        """Yield the state with the oracle's value of an activation replaced by each of the module's nearest results.

        Of pairs of tokens it is the nearest alone: another may be the scores with a mask, which any mask leaves as they are.
        """
        value = state.values[row.name]
        if (key := IdentityKey(value)) not in self._nearest:
            nearest = self.computed.operations.nearest(value.value, self.batch.mask)
            self._nearest[key] = [Value(laid, np.zeros(()), np.zeros(()), False, is_measured=True) for laid in nearest]
        for own in self._nearest[key][:1] if "query" in row.axes else self._nearest[key]:
            yield replace(state, values={**state.values, row.name: own})

    @cached_property
    def _nearest(self) -> dict[IdentityKey[Value], list[Value]]:
        return {}

    def _sources(self, name: str, row: Activation) -> list[ParameterSource]:
        """Return all possible sources of a parameter of the row; for a head, only those in modules that are run."""
        found = self.tensors.sources(self._shapes[name], layered=row.layer is not None)
        return [s for s in found if s.tensor.owner in self.computed.reading] if _is_head(row) else found

    def _named(self, row: Activation) -> dict[str, str]:
        """Return the names of the row's parameters by role, with those of layer 0 for all layers."""
        if row.name.endswith("predictions.decoder"):
            return {role: DECODER if name == WORDS else name for role, name in row.parameters.items()}
        return {role: name.replace(f".layer.{row.layer}.", ".layer.0.") for role, name in row.parameters.items()}

    def _options(self, state: State, row: Activation) -> Iterator[Choice]:
        """Yield possible choices of this row's parameters, the likeliest by name first; choices without a bias come last."""
        open_ = {role: name for role, name in self._named(row).items() if name not in state.evidence}
        used = state.used - {state.sources[WORDS].key} if DECODER in open_.values() and WORDS in state.sources else state.used
        sources = {
            role: sorted((s for s in self._sources(name, row) if s.key not in used), key=lambda s: -score(s.tensor.name, row, role))
            for role, name in open_.items()
        }
        if "bias" not in sources:
            yield from ({open_["weight"]: s} for s in sources.get("weight", ()))
            return
        pairs = [pair for pair in product(sources["weight"], sources["bias"]) if _go_together(*pair)]
        owned = [(w, b) for w, b in pairs if w.tensor.owner == b.tensor.owner]
        for w, b in sorted(owned or pairs, key=lambda p: -self._score(dict(zip(("weight", "bias"), p, strict=True)), row)):
            yield {open_["weight"]: w, open_["bias"]: b}
        yield from ({open_["weight"]: w} for w in sources["weight"] if row.kind != "norm")

    def _score(self, by_role: Mapping[str, ParameterSource], row: Activation) -> int:
        return sum(score(source.tensor.name, row, role) for role, source in by_role.items())

    def _is_named(self, choice: Choice, row: Activation) -> bool:
        named = self._named(row).items()
        return any(score(choice[name].tensor.name, row, role) > 1 for role, name in named if name in choice)

    def _differ(self, choices: Sequence[Choice]) -> bool:
        """Return whether choices that match equally well use different tensors."""
        return len({tuple(sorted((n, s.key) for n, s in c.items())) for c in choices if len(c) == len(choices[0])}) > 1

    def _attention(self, state: State, rows: Sequence[Activation]) -> State:
        """Identify query, key and value: three products of one input, distinguished by the resulting scores, probs and context."""
        three = rows[:3]
        after = [r for r in rows[3:] if r.name.rpartition(".")[0] == three[0].name.rpartition(".")[0]]
        products = self._products(state, three[0])
        tried: list[tuple[int, int, State]] = []
        for order in permutations(products, 3):
            trial, named = state, 0
            for row, choice in zip(three, order, strict=True):
                names = self._named(row)
                absent = [name for role, name in names.items() if role not in choice]
                trial = trial.taking({names[role]: source for role, source in choice.items()}, "value", absent)
                named += self._score(choice, row)
            tried.append((self._confirmed(self._walked(trial, [*three, *after]), [*three, *after]), named, trial))
        if not tried:
            return state  # they are then identified one by one, by name
        best = max(tried, key=lambda t: t[:2])
        if sum(t[0] == best[0] for t in tried) == 1:
            return best[2]
        return best[2].taking({n: s for n, s in best[2].sources.items() if n not in state.sources}, "tie")

    def _confirmed(self, state: State, rows: Sequence[Activation]) -> int:
        """Return the number of these activations that the module computes and of which it also computes a parent.

        An activation all of whose parents were replaced by the module's own values confirms no earlier parameters.
        """
        return sum(
            state.values[row.name].matches and any(state.values[parent].matches for parent in row.parents)
            for row in rows
            if row.kind != "copy"
        )

    def _products(self, state: State, row: Activation) -> list[Mapping[str, ParameterSource]]:
        """Return the parameters, by role, of each product that the module computes from the row's parent."""
        fitting = [o for o in self._options(state, row) if self._value(state.taking(o, "value"), row).matches]
        found: dict[tuple[str, int], Mapping[str, ParameterSource]] = {}
        for option in fitting:  # choices with a bias come first: the product before the bias is added is recorded, too
            choice = {role: option[name] for role, name in self._named(row).items() if name in option}
            found.setdefault(choice["weight"].key, choice)
        return list(found.values())


def _is_head(row: Activation) -> bool:
    return row.layer is None and not row.name.startswith("embeddings.")


def _go_together(weight: ParameterSource, bias: ParameterSource) -> bool:
    return weight.key != bias.key and (weight.form.parts, weight.piece) == (bias.form.parts, bias.piece)


def score(name: str, row: Activation, role: str) -> int:
    """Return the number of words in a tensor's name that match the parameter of this activation and role."""
    expected = next((w for end, w in sorted(_OF_ACTIVATION.items(), key=lambda item: -len(item[0])) if row.name.endswith(end)), "")
    return len(_words_in(name, expected)) + len(_words_in(name, _OF_ROLE[role]))


def _words_in(name: str, expected: str) -> set[str]:
    return set(words(name)) & set(expected.split())
