"""An implementation made of any `nn.Module`, with a table of its parameters and a table of its activations.

    my_bert = TorchImplementation(
        build=lambda a: MyBert(a.vocab_size, a.hidden_size, a.num_hidden_layers),
        parameters={
            "tokens.weight": "bert.embeddings.word_embeddings.weight",
            "blocks.{layer}.qkv.weight": transposed(fused(QUERY, KEY, VALUE)),
            …
        },
        activations={"blocks.{layer}": "encoder.layer.{layer}.output.LayerNorm"},
        call=lambda model, batch: model(batch.input_ids, batch.attention_mask),
    )

The table of parameters must be complete in both directions: every tensor of the module's state dict is mapped or listed as ignored,
and every parameter of the checkpoint is used exactly once or listed as unused. All mismatches are reported in a single error.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from conformance.candidates.arrays import UNCOMPARED, UNCOVERED, Unreadable
from conformance.candidates.capture import Showing, Tap, captured, hooked, require_modules, several_calls
from conformance.candidates.capture_gradients import captured_step, captured_with_gradients
from conformance.candidates.hook_effects import SMALL, SmallPass, eager_if, is_so, require_named, small_batch
from conformance.candidates.layouts import LAYER, Layout, entries_of, expanded, in_layer, is_layered, plain
from conformance.candidates.registry import ModuleRunner
from conformance.candidates.returned_value import RETURNED, ReturnedValue
from conformance.candidates.tables import OutputMap, absent_tensor, folded, hint, is_of_another_architecture, never_drops
from conformance.candidates.uncovered import uncovered
from conformance.errors import CandidateError, RegistrationError
from conformance.model.activations import outputs, parameter_shapes, parameters_of_head, table
from conformance.model.architecture import Architecture
from conformance.model.checkpoint import Checkpoint
from conformance.model.gradients import is_gradient
from conformance.model.pretraining import PretrainingData
from conformance.model.training import Training


class Show(Protocol):
    """A function from the key of a tap, the tensor there and the batch to activations."""

    def __call__(self, key: str, tensor: torch.Tensor, batch: Any) -> list[tuple[str, Any]]: ...  # noqa: D102


@dataclass(frozen=True)
class TorchImplementation:
    """An implementation made of an `nn.Module`.

    Attributes:
        build: returns the module for an architecture; the values of its parameters do not matter.
        parameters: maps names in the module's state dict to Hugging Face's names, or to a layout of them; `{layer}` stands for the
            index of each layer (`{2*layer+1}` for the second part, if the module keeps two parts of each layer in one list), and
            `{head}` for that of each head, if a head is a module of its own (`per_head(QUERY)`).
        activations: maps module paths (or `Tap`s) to an activation name, to several names for a fused tensor, or to an `OutputMap`.
        call: runs the module on a batch; returns its outputs by name, and may return further activations that are computed after
            the layers. An output that is hooked as well must be the same tensor.
        unused: shell patterns of checkpoint parameters that the module does not use.
        ignored: shell patterns of state-dict entries that no parameter of the checkpoint belongs to: buffers, and parameters that
            the checkpoint lacks, such as those of a head that is not run. They keep the values that `build` gave them.
        frozen: shell patterns of state-dict entries that are not trained, so that no gradients are requested for them.
        train: maps the module and a `conformance.Training` to a function that does one step of its training loop on a batch; raises
            `conformance.Unsupported` for settings that it does not support. `explain optimizer-step` says how gradients are read.
        untrained: returns the module for an architecture in its state before training; may be the same function as `build` if that
            draws the initial parameters.
        evaluation_only: whether the module is not judged in training mode: it is not meant to be trained and has no dropout, or its
            dropout rates are fixed.
        supported: returns the reason why an (architecture, device, dtype) is not supported, or None.
        features: features supported beyond the BERT of the paper (`conformance.model.architecture.FEATURES`).
        name: name used in results.
        known_failures: TOML file of its known failures (`conformance.checks.known_failures`).
        tokenizer: makes its own tokenizer, if it has one (`conformance.checks.laws.tokenization`).
        pretraining_data: the pipeline that makes its pre-training examples, if it has one.

    Example:
        The first step of a BERT. It is judged and correct, but without an output of the network the candidate does not conform:

        >>> class Words(nn.Module):
        ...     def __init__(self, a):
        ...         super().__init__()
        ...         self.table = nn.Embedding(a.vocab_size, a.hidden_size)
        ...     def forward(self, batch):
        ...         self.table(batch.input_ids)
        >>> words = TorchImplementation(
        ...     build=Words,
        ...     parameters={"table.weight": "bert.embeddings.word_embeddings.weight"},
        ...     activations={"table": "embeddings.word_embeddings"},
        ...     call=lambda module, batch: module(batch),
        ...     unused=["bert.embeddings.[!w]*", "bert.[!e]*", "bert.encoder.*", "cl*"],
        ... )
        >>> result = check(words, "tiny")
        >>> result.coverage, result.origins, result.reason.partition(":")[0]
        ((1, 47), (), 'no output is exposed')
    """

    build: Callable[[Architecture], nn.Module]
    parameters: Mapping[str, str | Layout]
    activations: Mapping[str | Tap, str | tuple[str, ...] | OutputMap]
    call: Callable[[Any, Any], Any]
    unused: Sequence[str] = ()
    ignored: Sequence[str] = ()
    frozen: Sequence[str] = ()
    train: Callable[[Any, Training], Callable[[Any], Any]] | None = None
    untrained: Callable[[Architecture], nn.Module] | None = None
    evaluation_only: bool = False
    supported: Callable[[Architecture, str, str], str | None] = field(default=lambda a, device, dtype: None)
    features: Sequence[str] = ()
    name: str | None = None
    known_failures: Path | None = None
    tokenizer: Callable[..., Any] | None = None
    pretraining_data: PretrainingData | None = None

    def supports(self, architecture: Architecture, device: str, dtype: str) -> str | None:
        """Return the reason why a case is not supported, or None.

        A case is not supported if `supported` returns a reason, if the tables name a parameter or activation of the standard BERT
        that the architecture lacks, or if the tables name no parameter of one of its heads.
        """
        reason = self.supported(architecture, device, dtype)
        if reason is not None:
            return reason
        usual = architecture.with_(position_embedding_type="absolute", embedding_norm=True, shared_layer_norm=False)
        names, usual_names = ({*parameter_shapes(a), *table(a)} for a in (architecture, usual))
        mapped = [n for value in self.parameters.values() for n in plain(value).names]
        mapped += [n for value in self.activations.values() for n in OutputMap.of(value).names]
        mapped = [each for n in mapped for each in expanded(n, architecture.num_hidden_layers)]
        has_its_own = bool(set(mapped) & (parameter_shapes(architecture).keys() - usual_names))
        lacking = [n for n in mapped if n in usual_names - names]
        if lacking and not has_its_own:  # an alternative component may replace the standard one
            return f"its tables name {lacking[0]}, which this architecture lacks"
        unnamed = next(
            (h for h in architecture.heads if not any(self._names(n, mapped) for n in parameters_of_head(h, architecture))), None
        )
        return f"its tables name no parameter of the head {unnamed}" if unnamed else None

    @cached_property
    def unobserved(self) -> "TorchImplementation":
        """The candidate without hooks, with only the outputs that `call` returns, if hooks change how it is run; else itself."""
        changes = self._compiles_hooks or (self.activations and is_so(lambda: self._small_pass().changes_outputs()))
        return self.without_hooks() if changes else self

    def without_hooks(self) -> "TorchImplementation":
        """Return the candidate without hooks, with only the outputs that `call` returns by name."""
        return replace(self, activations={}, supported=self.supports, call=lambda *given: require_named(self.call(*given)))

    @cached_property
    def _compiles_hooks(self) -> bool:
        """Whether a hook is inside code under `torch.compile`; the passes with hooks are then run eagerly."""
        return bool(self.activations) and is_so(lambda: self._small_pass().compiles_hooks())

    def _small_pass(self) -> SmallPass:
        module = _moved(self.build(SMALL), "cpu", torch.float32).eval()
        taps, _ = self.taps(module, SMALL)
        modules, called = require_modules(module, taps), partial(self._called, module, small_batch().on("cpu"), SMALL)
        return SmallPass(modules, [t.path for t in taps.values()], called, hooked(modules, taps, lambda name, tensor: None))

    def _names(self, parameter: str, mapped: Sequence[str]) -> bool:
        """Return whether the tables name a parameter, as used or as unused."""
        return parameter in mapped or _matches(parameter, self.unused)

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> ModuleRunner:
        """Build the module, load the checkpoint into it, and return a runner that captures its activations.

        Raises:
            RegistrationError: a table does not match; the message lists all mismatches.
            CandidateError: the module does not load its state dict.
        """
        module, taps, show = self._tapped(checkpoint, device, dtype)
        a, compiles_hooks = checkpoint.architecture, self._compiles_hooks
        ignored = {name: p for name, p in module.named_parameters() if _matches(name, self.ignored)}
        of_first: list[str] = []

        def called(batch: Any) -> dict[str, Any]:
            with eager_if(compiles_hooks):
                return self._called(module, batch, a)

        def returned_by(batch: Any, returned: ReturnedValue) -> Mapping[str, Any]:
            with eager_if(compiles_hooks):
                return returned.of(lambda: self.call(module, batch), lambda value: self._named(value, a))

        def runner(batch: Any) -> Iterator[tuple[str, Any]]:
            if not of_first:
                of_first.append(uncovered(module, ignored, lambda: captured(module, taps, lambda: called(batch))))
            if of_first[0]:
                yield UNCOVERED, Unreadable(of_first[0])
            if not taps:  # no hooks at all: the module is run as its users run it
                return (yield from captured(module, taps, lambda: self._called(module, batch, a)))
            returned = ReturnedValue(module, a, batch)
            yield from returned.compared(captured(module, taps, partial(returned_by, batch, returned)), partial(show, batch=batch))

        def gradients(batch: Any, source: str, gradient: torch.Tensor) -> Iterator[tuple[str, Any]]:
            returned, tapped = ReturnedValue(module, a, batch), {name for key in taps for name in key.split()}
            again: dict[str, torch.Tensor] = {}  # the tapped activations that the module returns by name

            def forward() -> dict[str, Any]:
                named = {key.removeprefix(RETURNED): value for key, value in returned_by(batch, returned).items()}
                again.update((f"{RETURNED}{name}", named.pop(name)) for name in tapped & named.keys())
                return named

            parameters, first = partial(self._unpacked, module, a), list[tuple[str, torch.Tensor]]()
            captured_pass = captured_with_gradients(
                module, taps, forward, source, gradient, show=partial(show, batch=batch), parameters=parameters
            )

            def activations() -> Iterator[tuple[str, torch.Tensor]]:
                for name, tensor in captured_pass:
                    if is_gradient(name):
                        first.append((name, tensor))
                        break
                    yield name, tensor
                yield from again.items()

            compared = returned.compared(activations(), lambda name, tensor: [(name, tensor)])
            return chain((pair for pair in compared if pair[0] != UNCOMPARED), first, captured_pass)

        def trainer(training: Training) -> Callable[[Any], Iterator[tuple[str, torch.Tensor]]]:
            assert self.train is not None
            step = self.train(module, training)
            return lambda batch: captured_step(module, lambda: step(batch), parameters=partial(self._parts, module, a))

        def initial() -> Iterator[tuple[str, torch.Tensor]]:
            assert self.untrained is not None
            untrained = _moved(self.untrained(a), device, getattr(torch, dtype))
            return self._first_of_copies(untrained, a)

        return ModuleRunner(
            module, runner, gradients, self.evaluation_only, trainer if self.train else None, initial if self.untrained else None
        )

    def _first_of_copies(self, module: nn.Module, a: Architecture) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the checkpoint's parameters; only the first copy of a parameter, since the check `tied-weights` compares copies."""
        seen = set()
        for name, tensor in self._parts(module, a, module.named_parameters()):
            if name not in seen:
                seen.add(name)
                yield name, tensor

    def _unpacked(
        self, module: nn.Module, a: Architecture, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients of the checkpoint's parameters that are not frozen; copies of one parameter are summed."""
        found: dict[str, torch.Tensor] = {}
        for name, part in self._parts(module, a, tensors):
            found[name] = found[name] + part if name in found else part
        yield from found.items()

    def _parts(
        self, module: nn.Module, a: Architecture, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield tensors of the module's parameters, except frozen ones, unpacked to the checkpoint's names and layouts."""
        shapes, own = parameter_shapes(a), {n: tuple(t.shape) for n, t in module.state_dict().items()}
        layouts = {name: (layout, names) for name, layout, names in self._entries(own, shapes, a)[0]}
        renamed, joined = names_in_state_dict(module), dict[str, list[torch.Tensor]]()
        for own_name, tensor in tensors:
            name = renamed.get(own_name, own_name)
            if name in layouts and not _matches(name, self.frozen):
                layout, names = layouts[name]
                parts = layout.unpack(tensor.detach().double().cpu().numpy(), [shapes[n] for n in names], a)
                for each, part in zip(names, parts, strict=True):
                    found = torch.from_numpy(np.array(part, order="C")).to(tensor)
                    if layout.is_of_head:
                        joined.setdefault(each, []).append(found)
                        if len(joined[each]) < a.num_attention_heads:
                            continue
                        found = torch.stack(joined.pop(each)).sum(0)
                    yield each, found

    def shown(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> nn.Module:
        """Return the module with every tapped activation as an output, so that it can be traced or exported."""
        module, taps, show = self._tapped(checkpoint, device, dtype)
        return Showing(module, taps, lambda batch: self._called(module, batch, checkpoint.architecture), show)

    def _tapped(self, checkpoint: Checkpoint, device: str, dtype: str) -> tuple[nn.Module, dict[str, Tap], Show]:
        """Return the module, its taps, and the function from key, tensor at the tap, and batch to activations."""
        module = self.module(checkpoint, device, dtype)
        taps, seen = self.taps(module, checkpoint.architecture)

        def show(key: str, tensor: torch.Tensor, batch: Any) -> list[tuple[str, Any]]:
            return (seen.get(key) or OutputMap.of(key)).show(tensor, batch)

        return module, taps, show

    def _called(self, module: nn.Module, batch: Any, a: Architecture) -> dict[str, Any]:
        return self._named(self.call(module, batch), a)

    def _named(self, returned: Any, a: Architecture) -> dict[str, Any]:
        """Return the activations that `call` returns by name; raise `CandidateError` for interior activations of a layer."""
        found = dict(returned) if isinstance(returned, Mapping) else {}
        late = [n for n in found if str(n).startswith("encoder.layer.") and n not in outputs(a)]
        if late:
            raise CandidateError(f"`call` returns {late[0]} after the whole pass, too late to be judged by layer; tap it")
        return found

    def module(self, checkpoint: Checkpoint, device: str = "cpu", dtype: str = "float32") -> nn.Module:
        """Return the module with the checkpoint loaded, in eval mode.

        Raises:
            RegistrationError: the table of parameters does not match; the message lists all mismatches.
            CandidateError: the module does not load all of its state dict.
        """
        module = _moved(self.build(checkpoint.architecture), "cpu", torch.float64)
        state = self.state_dict(module, checkpoint)
        loaded = module.load_state_dict(state, strict=False)
        lost = [n for n in loaded.missing_keys if n in state] + list(loaded.unexpected_keys)
        if lost:
            raise CandidateError(f"the module did not take {', '.join(lost)} from its state dict")
        return _moved(module, device, getattr(torch, dtype)).eval()

    def state_dict(self, module: nn.Module, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
        """Return the checkpoint in the module's own names and layouts, in float64.

        Raises:
            RegistrationError: tensors are missing, unexpected, used twice or of the wrong shape; the message lists all of them.
        """
        a, wanted = checkpoint.architecture, parameter_shapes(checkpoint.architecture)
        own = {n: tuple(t.shape) for n, t in module.state_dict().items() if isinstance(t, torch.Tensor)}
        entries, wrong = self._entries(own, wanted, a)
        wrong += [f"mapped, though named in `ignored`: {name}" for name, _, _ in entries if _matches(name, self.ignored)]
        state = {}
        for name, layout, parameters in entries:
            try:
                packed = layout.pack([checkpoint.weights[p] for p in parameters], a)
            except ValueError as error:
                shapes = ", ".join(f"{p} {wanted[p]}" for p in parameters)
                wrong.append(f"the layout of {name} cannot hold {shapes}: {error}")
                continue
            if packed.shape != own[name]:
                hint = "; transposed()?" if packed.shape == own[name][::-1] else ""
                wrong.append(f"wrong shape: {name} is {own[name]} in the module, {packed.shape} from {', '.join(parameters)}{hint}")
            state[name] = torch.from_numpy(np.array(packed, order="C"))
        if wrong:
            raise RegistrationError("the table of parameters does not fit\n  " + "\n  ".join(folded(wrong)))
        return state

    def _entries(
        self, own: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], a: Architecture
    ) -> tuple[list[tuple[str, Layout, list[str]]], list[str]]:
        """Return every (state-dict name, layout, parameters) of the table for an architecture, and the errors in the table."""
        entries: list[tuple[str, Layout, list[str]]] = []
        wrong: list[str] = []
        absent: dict[str, list[str]] = {}
        every = [entry for pattern, value in self.parameters.items() for entry in entries_of(pattern, plain(value), a)]
        used_names = {name for name, _, _ in every}
        for name, layout, parameters in every:
            known = [p for p in parameters if p in wanted]
            if not known and is_of_another_architecture(parameters, a):
                absent[name] = parameters
                continue
            wrong += [f"unknown parameter: {p}{hint(p, wanted)}" for p in parameters if p not in wanted]
            if name not in own:
                wrong.append(absent_tensor(name, own, used_names, parameters))
            elif len(known) == len(parameters):
                entries.append((name, layout, parameters))
        mapped = Counter(name for name, _, _ in entries)
        wrong += [f"the checkpoint has no {', '.join(p)}, of which {n} is made: give that reason in "
                  f"`supported`, to skip such checkpoints, or name {n} in `ignored` instead of mapping it"
                  for n, p in absent.items() if n in own]  # fmt: skip
        wrong += [f"unexpected: the module's {n} {s} is not mapped; map it, or name it in `ignored`" for n, s in own.items()
                  if n not in mapped and n not in absent and not _matches(n, self.ignored)]  # fmt: skip
        wrong += [f"mapped twice: {name}" for name, count in mapped.items() if count > 1]
        used = Counter(p for _, layout, parameters in entries for p in parameters if not layout.is_tied)
        wrong += [f"used twice: {p}; wrap the second use in tied()" for p, count in used.items() if count > 1]
        wrong += [f"missing: nothing is made of {p} {s}; map it, or name it in `unused`" for p, s in wanted.items()
                  if p not in used and not _matches(p, self.unused)]  # fmt: skip
        wrong += [f"used, though named in `unused`: {p}" for p in used if _matches(p, self.unused)]
        return entries, wrong

    def taps(self, module: nn.Module, a: Architecture) -> tuple[dict[str, Tap], dict[str, OutputMap]]:
        """Return the taps and, under the same keys, the activations that each tap captures.

        Raises:
            RegistrationError: the table of activations does not match; the message lists all mismatches.
        """
        rows, modules = table(a), dict(module.named_modules(remove_duplicate=False))
        taps: dict[str, Tap] = {}
        seen: dict[str, OutputMap] = {}
        wrong: list[str] = []
        shown_at: Counter[str] = Counter()
        for where, value in self.activations.items():
            pattern = where if isinstance(where, Tap) else Tap(where)
            shown = OutputMap.of(value)
            if any(is_layered(n) != is_layered(pattern.path) for n in shown.names):
                wrong.append(f"{LAYER} on one side only: {pattern.path} shows {', '.join(shown.names)}")
                continue
            layers = range(a.num_hidden_layers) if is_layered(pattern.path) else [0]
            for layer in layers:
                tap = Tap(in_layer(pattern.path, layer), pattern.what, pattern.element, pattern.call)
                names = tuple(in_layer(n, layer) for n in shown.names)
                if not set(names) & set(rows) and (
                    never_drops(names, a) or (tap.path not in modules and is_of_another_architecture(names, a))
                ):
                    continue
                wrong += [f"unknown activation: {n}{hint(n, rows)}" for n in names if n not in rows]
                if tap.path not in modules:
                    wrong.append(f"matches nothing: the module has no submodule {tap.path!r}{hint(tap.path, modules)}")
                shown_at.update(names)
                taps[" ".join(names)] = tap
                seen[" ".join(names)] = replace(shown, names=names)
        wrong += several_calls(modules, taps.values())
        wrong += [f"shown twice: {n}" for n, times in shown_at.items() if times > 1]
        if wrong:
            raise RegistrationError("the table of activations does not fit\n  " + "\n  ".join(folded(wrong)))
        return taps, seen


def names_in_state_dict(module: nn.Module) -> dict[str, str]:
    """Return the name in the state dict of each parameter that has another one there, as a wrapper's hook may give it."""
    held = module.state_dict(keep_vars=True)
    of_tensor = {id(tensor): name for name, tensor in held.items()}
    return {n: of_tensor[id(p)] for n, p in module.named_parameters() if n not in held and id(p) in of_tensor}


def _moved(module: nn.Module, device: str, dtype: torch.dtype) -> nn.Module:
    """Move a module with its own `to` and return it; an overridden `to` may take one argument only and return anything."""
    module.to(dtype)
    module.to(torch.device(device))
    return module


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
