"""Mapping of a class, a function or an instance to a proposal, and to an implementation that can be run."""

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from conformance.candidates.arrays import CALLED, GUESSED, Unreadable
from conformance.candidates.hook_effects import compiled_around, eager_if, is_so
from conformance.candidates.layouts import HEAD, LAYER, in_layer, is_layered
from conformance.candidates.registry import ModuleRunner
from conformance.candidates.torch_implementation import TorchImplementation
from conformance.candidates.torch_state import restored
from conformance.errors import CandidateError, RegistrationError, UsageError
from conformance.mapping.call import Call, calls
from conformance.mapping.forward_pass import PROBE, batch_for, first_tensor, observe
from conformance.mapping.identify import Identification
from conformance.mapping.implementation import at_another_depth, implementation_of
from conformance.mapping.proposal import BUFFER, UNMAPPED, UNREAD, Held, Proposal, held, unused_patterns
from conformance.mapping.signature import Builder, builder_of, takes_sizes
from conformance.mapping.source import is_attribute_path, require_writable
from conformance.mapping.taps import Places
from conformance.mapping.tensors import Tensors, grouped, patterns_in
from conformance.model.activations import last_hidden
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.formats import Array

T = TypeVar("T")
_REMOVERS: Mapping[type, str] = {WeightNorm: "remove_weight_norm", SpectralNorm: "remove_spectral_norm"}
_ACTIVATION_FUNCTIONS = ("gelu", "gelu_new", "relu")  # one name of each function


def proposed(factory: Any, name: str, home: str, architecture: Architecture | None = None) -> Proposal:
    """Return the proposed registration of a module.

    The factory is a class or function that builds the module, or the module itself, and has that name in the Python module `home`.
    Unless an architecture is given, the module is examined with sizes that are all different.

    Raises:
        UsageError: the signature does not determine how the module is built, or a name cannot be written in an adaptor.
        CandidateError: the module's own code raised an exception.
    """
    if isinstance(factory, nn.Module) and architecture is None:
        raise UsageError(f"{name} is built already, with sizes of its own: give its checkpoint with --checkpoint DIR, or its class")
    a = architecture or _with_positions(factory, name)
    with restored():
        builder = builder_of(factory, name)
        found = _proposed(builder, name, home, a)
        return at_another_depth(replace(found, computes=_other_activation_function(found)))


def _other_activation_function(found: Proposal) -> str:
    """Return another activation function that the module computes, if it cannot be given any; else an empty string.

    It is that function with which, called as proposed, most activations match the oracle, if more than with the architecture's do.
    """
    best, of = found.coverage
    if best == of or "hidden_act" in found.builder.given:
        return ""
    best_function = ""
    for a in (found.architecture.with_(hidden_act=f) for f in _ACTIVATION_FUNCTIONS if f != found.architecture.hidden_act):
        module, tensors = _drawn_module(found.builder, a)
        with eager_if(True):
            computed, _ = _tried(found.call, module, tensors, a).search.coverage
        best, best_function = (computed, a.hidden_act) if computed > best else (best, best_function)
    return best_function


def _with_positions(factory: Any, name: str) -> Architecture:
    """Return `PROBE` with the number of positions that the module has, or with sinusoidal positions if it has no table of them."""
    with restored():
        builder = builder_of(factory, name)
        module = _guarded(lambda: builder.build(PROBE), "its constructor")
    _require_values(module)
    shapes = {parameter: tuple(p.shape) for parameter, p in module.named_parameters()}
    if any(PROBE.max_position_embeddings in shape for shape in shapes.values()):
        return PROBE
    tables = {shapes[n] for n, pattern in patterns_in(shapes, PROBE).items() if n == pattern and len(shapes[n]) == 2}
    known, needed = PROBE.as_dict().values(), batch_for(PROBE).length
    lengths = [n for n, width in tables if width == PROBE.hidden_size and n not in known and n >= needed]
    if len(lengths) == 1:
        return PROBE.with_(max_position_embeddings=lengths[0])
    return PROBE.with_(position_embedding_type="sinusoidal")


def _drawn_module(builder: Builder, a: Architecture) -> tuple[nn.Module, Tensors]:
    """Return the module with random parameters, and these."""
    module = _guarded(lambda: builder.build(a), "its constructor")
    _require_values(module)
    module = module.float().eval()
    _require_unparametrized(module)
    return module, grouped(_guarded(lambda: _drawn(module), "setting its parameters"), a)


def _proposed(builder: Builder, name: str, home: str, a: Architecture) -> Proposal:
    module, tensors = _drawn_module(builder, a)
    with eager_if(True):  # a compiled graph hides its operations
        trial = _best_trial(module, tensors, a)
    search = trial.search
    places = Places(search)
    returned = places.returned()
    every = {**dict(module.named_parameters(remove_duplicate=False)), **module.state_dict()}
    patterns = patterns_in({n: tuple(t.shape) for n, t in every.items() if isinstance(t, torch.Tensor)}, a)
    parts = tuple(held(search))
    parts += tuple(_second_names(module, parts, patterns))
    proposal = Proposal(
        name,
        home,
        builder,
        trial.call,
        parts,
        tuple(places.located()),
        tuple(unused_patterns([n for h in parts for n in h.names], a)),
        _ignored(module, parts, patterns, search.computed.reading),
        a,
        search.coverage,
        search.computes_layers,
        last=_last_layer(parts),
        returns=tuple(location for _, location in returned if location),
        items=search.computed.length,
        has_dropout=any(isinstance(m, nn.Dropout) for m in module.modules()),
        unknown_results=tuple(array.shape for array, location in returned if location is None),
    )
    if not proposal.has_output and (output := places.by_shape(last_hidden(a))):
        # The module's result may be its output although a mistake in the last step changes it, so that the step is judged.
        named = replace(proposal, returns=(output,), unknown_results=())
        proposal = named if named.has_output else proposal
    return require_writable(proposal)


def _require_values(module: nn.Module) -> None:
    """Raise `UsageError` if a tensor of a module has no values yet."""
    lacking = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if is_lazy(tensor) or tensor.is_meta]
    if lacking:
        raise UsageError(
            f"{lacking[0]} ({len(lacking)} such tensors in all) has no values: it is on the device meta, or in a lazy module that "
            "was not run. Give a class or function that builds the module with every tensor's values"
        )


def _require_unparametrized(module: nn.Module) -> None:
    """Raise `UsageError` if a parameter is computed from others: a checkpoint holds the result, which does not fit those."""
    if computed := list(_computed(module)):
        name, by, remover = computed[0]
        raise UsageError(
            f"{name.removeprefix('.')} ({len(computed)} such parameters in all) is computed from others by {by}, and a checkpoint "
            f"holds the result. Map a class or function that builds the module as it is run after training, with {remover} for each"
        )


def _computed(module: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each parameter that is computed from others, with what computes it, and the call that ends that."""
    for path, part in module.named_modules():
        for hook in part._forward_pre_hooks.values():
            if remover := _REMOVERS.get(type(hook)):
                by = f"{type(hook).__name__} of torch.nn.utils"
                yield f"{path}.{getattr(hook, 'name', '')}", by, f"torch.nn.utils.{remover}"
        for name in part.parametrizations if is_parametrized(part) else ():
            removed = f"remove_parametrizations(model.get_submodule({path!r}), {name!r})"
            yield f"{path}.{name}", "torch.nn.utils.parametrize", removed


def _second_names(module: nn.Module, parts: Sequence[Held], patterns: Mapping[str, str]) -> Iterator[Held]:
    """Yield parameters that the module registers under a second name, such as a decoder tied to the word embeddings."""
    by_name = {h.tensor.name: h for h in parts}
    first = {id(tensor): name for name, tensor in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    repeated = {patterns[name]: patterns[first[id(tensor)]] for name, tensor in every if name != first[id(tensor)]}
    yield from (by_name[of].for_tied_tensor(name) for name, of in repeated.items() if of in by_name)


def _ignored(module: nn.Module, parts: Sequence[Held], patterns: Mapping[str, str], reading: Collection[str]) -> dict[str, str]:
    """Return the reason for each pattern of buffers and parameters that hold no parameter of the checkpoint, sorted by reason."""
    mapped, parameters = {h.tensor.name for h in parts}, dict(module.named_parameters(remove_duplicate=False))
    reasons: dict[str, dict[str, str]] = {BUFFER: {}, UNREAD: {}, UNMAPPED: {}}
    for name, pattern in patterns.items():
        if pattern not in mapped:
            is_read = in_layer(pattern.rpartition(".")[0], 0).replace(HEAD, "0") in reading
            reason = BUFFER if name not in parameters else UNMAPPED if is_read else UNREAD
            reasons[reason][pattern] = reason
    return {**reasons[BUFFER], **reasons[UNREAD], **reasons[UNMAPPED]}


def _last_layer(parts: Sequence[Held]) -> str:
    """Return a Python expression of the index of the last layer, in terms of `model`; an empty string if nothing counts layers."""
    of_layers = [h.tensor for h in parts if any(is_layered(name) for name in h.names)]
    across = [tensor.name for tensor in of_layers if tensor.across]
    lists = sorted({tensor.name.partition(f".{LAYER}.")[0] for tensor in of_layers if f".{LAYER}." in tensor.name})
    return next((f"len(model.{n}) - 1" for n in (*lists, *across) if is_attribute_path(n)), "")


def _drawn(module: nn.Module) -> dict[str, Array]:
    """Set every parameter to random values and return them; gains stay near 1, so that norms pass on their inputs."""
    generator, state = torch.Generator().manual_seed(0), {}
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            drawn = torch.randn(tensor.shape, generator=generator)
            is_gain = tensor.numel() > 0 and bool((tensor == 1).all())
            # A product of inputs of unit variance has standard deviation 1.4, so that softmax and GELU are clearly nonlinear there.
            tensor.copy_(1 + drawn / 4 if is_gain else drawn * _deviation(tensor))
            state[name] = np.asarray(tensor.double().numpy().copy())
    return state


def _deviation(tensor: torch.Tensor) -> float:
    widths = [n for n in tensor.shape if n > 1]
    return 0.5 if len(widths) < 2 else 1.4 / float(min(widths[-2:])) ** 0.5


@dataclass(frozen=True)
class _Trial:
    """A way of calling the module, and the search for its parameters in the forward pass."""

    call: Call
    search: Identification

    @property
    def rank(self) -> tuple[int, int]:
        """The number of layers and of embeddings that match, which depend on the call; other mistakes leave them unchanged."""
        values = self.search.state.values
        return self.search.masked_layers, sum(values[name].matches for name in values if name.startswith("embeddings."))


def _best_trial(module: nn.Module, tensors: Tensors, a: Architecture) -> _Trial:
    """Return the way of calling the module with which most layers mask as the oracle does.

    Of equal ways, it is the likeliest by names: the total number of matching activations is no reason to choose another, since with
    a wrong mask a module that has a mistake may compute more of them.
    """
    last = last_hidden(a)
    trials: dict[int, _Trial] = {}
    ways = list(_distinct(module, a))
    for place, call in ways:
        trials[place] = trial = _tried(call, module, tensors, a)
        values = trial.search.state.values
        if last not in values or (values[last].matches and trial.search.masked_layers == a.num_hidden_layers):
            break
    by_name = [trials[place] for place in sorted(trials)]
    best = max(by_name, key=lambda trial: trial.rank)
    likeliest = min(ways, key=lambda way: way[0])[1]
    is_other = best.search.masked_layers == a.num_hidden_layers and best.call.arguments != likeliest.arguments
    as_named = f"the names of its arguments suggest model({likeliest.arguments}), which gives another result" if is_other else ""
    return replace(best, call=replace(best.call, as_named=as_named, open=(*best.call.open, *_undecided(best, by_name, a))))


def _tried(call: Call, module: nn.Module, tensors: Tensors, a: Architecture) -> _Trial:
    """Run the module, called in this way, and return the trial."""
    given = _batch_of(call, a)
    run = partial(call.run, module, given.on("cpu"))
    computed = _guarded(partial(observe, module, run, a.num_attention_heads), "its forward pass")
    return _Trial(call, Identification(tensors, computed, a, given))


def _batch_of(call: Call, a: Architecture) -> Batch:
    return batch_for(a, padded_at_end=call.takes_lengths)


def _undecided(best: _Trial, by_name: Sequence[_Trial], a: Architecture) -> Iterator[str]:
    """Yield a message if the values do not decide between the ways of calling the module."""
    first, matching, of = by_name[0], best.search.masked_layers, a.num_hidden_layers
    if not best.call.takes_mask or matching == of or last_hidden(a) not in best.search.state.values:
        return
    start = f"the form of the mask is not certain: the attention probabilities match in {matching} of {of} layers with"
    if best is not first:
        fewer = best.search.state.score - first.search.state.score
        yield f"{start} model({best.call.arguments}); with model({first.call.arguments}), {fewer} fewer activations match"
    elif any(trial.search.masked_layers == matching for trial in by_name[1:]):
        yield f"{start} model({best.call.arguments}), which the names suggest, and in as many with another form"
    elif not matching and len(by_name) > 1:
        yield f"{start} model({best.call.arguments}), which the names suggest"


def _distinct(module: nn.Module, a: Architecture) -> Iterator[tuple[int, Call]]:
    """Yield the ways of calling the module that run, each with its place by name; one way for each result.

    Ways with which the ids of padding have no effect on the result come first: they are usually right, and need no other trial.

    Raises:
        CandidateError: no way of calling the module returns a tensor.
    """
    results: list[Any] = []
    found: list[tuple[bool, Call]] = []
    errors: list[str] = []
    for call in calls(module):
        given = _batch_of(call, a)
        other = replace(given, input_ids=np.where(given.mask, given.input_ids, (given.input_ids + 1) % 2))
        try:
            with torch.no_grad():
                result, again = (first_tensor(call.run(module, b.on("cpu"))) for b in (given, other))
        except (Exception, SystemExit) as error:
            errors.append("".join(traceback.format_exception(error)[-2:]))
            continue
        if not any(result.shape == r.shape and torch.equal(result.nan_to_num(), r.nan_to_num()) for r in results):
            results.append(result)
            found.append((not _same_where_real(result, again, given), call))
    if not found:
        raise CandidateError(
            f"no way of calling it gives a tensor. Its forward takes {inspect.signature(module.forward)}. The first call that was "
            f"tried, model({next(calls(module)).arguments}):\n{errors[0]}Give instead a class whose forward takes input_ids, "
            "token_type_ids and attention_mask, int64 (B, S), and calls it"
        )
    yield from ((place, call) for place, (_, call) in sorted(enumerate(found), key=lambda one: one[1][0]))


def _same_where_real(result: torch.Tensor, again: torch.Tensor, given: Batch) -> bool:
    """Return whether two results agree at real tokens, or everywhere if their first two axes are not those of the batch."""
    real = torch.from_numpy(np.array(given.mask))
    for mask in (real, real.T):
        if result.shape[:2] == mask.shape:
            return bool(result.isfinite().all()) and torch.allclose(result[mask], again[mask])
    return bool(result.isfinite().all()) and torch.allclose(result, again)


def _guarded(run: Callable[[], T], what: str) -> T:
    """Return the result of `run`; convert an exception of the user's code to `CandidateError` with the end of its traceback."""
    try:
        return run()
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the code may raise anything, including SystemExit
        tail = "".join(traceback.format_exception(error)[-3:])
        raise CandidateError(f"{what} raised {type(error).__name__}: {error}\n{tail}") from error


@dataclass(frozen=True)
class MappedModule:
    """An implementation made of a module or a class of modules, which is mapped when it is first used."""

    factory: Any
    name: str
    is_observed: bool = True

    @cached_property
    def unobserved(self) -> "MappedModule":
        """The candidate without hooks, if they change how it is run (`TorchImplementation.unobserved`); else itself."""
        return replace(self, is_observed=False) if self.is_observed and is_so(self._changed_by_hooks) else self

    def _changed_by_hooks(self) -> bool:
        if isinstance(self.factory, nn.Module):  # built for one checkpoint, which is not known here
            modules = dict(self.factory.named_modules())
            return compiled_around(modules, modules)
        return self._implementation.unobserved is not self._implementation

    @cached_property
    def _implementation(self) -> TorchImplementation:
        return self._mapped(None)[0]

    @cached_property
    def _by_architecture(self) -> dict[Architecture | None, tuple[TorchImplementation, Mapping[str, str]]]:
        return {}

    def _mapped(self, a: Architecture | None) -> tuple[TorchImplementation, Mapping[str, str]]:
        """Return the proposed implementation and notes on it by name, of a module that was built before for an architecture."""
        if a not in self._by_architecture:
            home = getattr(self.factory if a is None else type(self.factory), "__module__", "")
            try:
                found = proposed(self.factory, self.name, home, a)
            except UsageError as error:  # it cannot be mapped; the message says what to register instead
                raise RegistrationError(str(error)) from error
            self._by_architecture[a] = implementation_of(found), {CALLED: found.called, GUESSED: found.guesses}
        return self._by_architecture[a]

    def _of(self, a: Architecture) -> tuple[TorchImplementation, Mapping[str, str]]:
        found, notes = self._mapped(a if isinstance(self.factory, nn.Module) else None)
        return found if self.is_observed else found.without_hooks(), notes

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return the reason of the proposed implementation for not supporting a case, or None."""
        return self._of(architecture)[0].supports(architecture, device, dtype)

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> ModuleRunner:
        """Return a runner, as `TorchImplementation.prepare` of the proposed implementation; it also yields the notes."""
        found, notes = self._of(checkpoint.architecture)
        runner = found.prepare(checkpoint, device, dtype)
        noted = [(name, Unreadable(note)) for name, note in notes.items() if note]
        return replace(runner, call=lambda batch: chain(noted, runner.call(batch)))


def mapped_builder(function: Callable[..., Any], name: str) -> MappedModule | None:
    """Return the candidate that a function of sizes, which builds a module, is mapped to; None for other functions."""
    return MappedModule(function, name) if name.isidentifier() and takes_sizes(function, name) else None
