"""Finding implementations: by entry point, or as `package.module:object`. Imports a plug-in only when it is asked for."""

import ast
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from conformance.errors import PluginError, UnknownNameError, UsageError
from conformance.names import nearest
from conformance.numerics.first_calls import make_first_calls

GROUP = "bert_conformance.implementations"
SWITCH = "BERT_CONFORMANCE_NO_PLUGINS"

Runner = Callable[[Any], Mapping[str, Any] | Iterator[tuple[str, Any]]]


class Implementation(Protocol):
    """The base protocol: any object with `prepare`; a function of the same arguments serves as well.

    A runner is a function of a batch. It returns a mapping of activation names to arrays (NumPy, torch, or anything with
    `__dlpack__`), or yields pairs of them in the order of computation. A batch has `input_ids`, `token_type_ids` and
    `attention_mask`, int64 tensors (B, S) on the device; the last two are None where a check omits them, and
    `batch.filled()` has zeros and ones for them; `batch.numpy()` and `batch.filled().numpy()` are the same in NumPy.

    All else is optional, and asked for by the checks that need it. An implementation may have

    - `supports(architecture, device, dtype)`, or the same under the name `supported`: None, or the reason for which a case is
      skipped;
    - `features`: names of what it can do beyond the encoder of the paper, of `relative_key`, `relative_key_query`, `is_decoder`,
      `add_cross_attention` and `pruned_heads` (of the architecture), `position_ids` and `attention_mask_3d` (inputs that a batch
      may have besides; a decoder with cross-attention gets `encoder_hidden_states`, (B, T, H) in float64, and
      `encoder_attention_mask`). Goldens for what is not named are skipped, with the reason;
    - `evaluation_only = True`: it is not meant to be trained.

    A runner may have

    - `gradients(batch, name, gradient)`: the gradient with respect to the activation of that name is given; yields what the runner
      yields, and each gradient as `NAME.grad` (`conformance.captured_with_gradients` does it for a module);
    - `train(mode)`: as modules have it, for `training-mode`. Dropouts are exposed like other activations, and
      `checkpoint.architecture` has their rates;
    - `trainer(training)`: for `optimizer-step` and `schedule`, of a `conformance.Training` a function of a batch that does one step
      and yields `NAME.grad` and `NAME` of each parameter that learns (`conformance.captured_step` does it for a module);
    - `initial()`: for `initialization`, draws parameters anew and yields them by the checkpoint's names.

    Example:
        A function as a candidate. It looks its first step up rightly; without an output of the network it does not conform:

        >>> def words(checkpoint, device, dtype):
        ...     table = checkpoint.state_dict(dtype, device)["bert.embeddings.word_embeddings.weight"]
        ...     return lambda batch: {"embeddings.word_embeddings": table[batch.input_ids]}
        >>> result = check(words, "tiny")
        >>> result.coverage, result.origins
        ((1, 47), ())
    """

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Runner:
        """A runner for this checkpoint on this device in this dtype.

        Args:
            checkpoint: has `architecture` (the names of Hugging Face's config), `weights` (float64 NumPy, read-only, by Hugging
                Face's names as in `BertForPreTraining`), `state_dict(dtype, device)` (the same in torch), and `path`, a
                safetensors file.
            device: any torch device, as "cpu" or "cuda:0".
            dtype: its name, as "float32".

        Raises:
            Unsupported: this case cannot be run; it is skipped with that reason.
        """


class Isolated:
    """Base of implementations that run no code of theirs in this process: what is here is out of their reach."""


@dataclass(frozen=True)
class Registered:
    """A registered implementation that has not been imported."""

    name: str
    distribution: str
    version: str
    origin: str


@dataclass(frozen=True)
class _Prepare:
    """A bare `prepare` function, as an implementation."""

    prepare: Callable[[Any, str, str], Runner]


def as_implementation(found: Any) -> Implementation:
    """`found` itself where it has `prepare`; a function serves as `prepare`; a bare `nn.Module` or class of them is mapped.

    Raises:
        UsageError: it is anything else, or a function of other arguments.
    """
    make_first_calls()
    if hasattr(found, "named_modules") and not hasattr(found, "prepare"):  # a class of `nn.Module`, or a module
        from conformance.mapping.mapped import MappedModule

        return MappedModule(found, found.__name__ if isinstance(found, type) else type(found).__name__)
    if isinstance(found, type):
        raise UsageError(f"{found.__name__} is a class; give an object of it: {found.__name__}()")
    if hasattr(found, "prepare"):
        return found  # type: ignore[no-any-return]  # anything with prepare() is one
    if callable(found):
        _require_arguments(found)
        return _Prepare(found)
    raise UsageError(f"{found!r} is neither an object with prepare() nor a function prepare(checkpoint, device, dtype)")


def _require_arguments(function: Callable[..., Any]) -> None:
    """Raise `UsageError` for a function that cannot be called as `prepare` is."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not Python's
        return
    try:
        signature.bind("checkpoint", "device", "dtype")
    except TypeError as error:
        raise UsageError(
            f"a function that is a candidate is called with (checkpoint, device, dtype), and this one takes {signature}; of one "
            "that builds a torch.nn.Module, `bert-conformance map` makes a candidate"
        ) from error


def supports_of(candidate: Any) -> Callable[[Any, str, str], Any] | None:
    """Its `supports`, or where it has none its `supported`, as a `TorchImplementation` calls it; None where it has neither."""
    found: Callable[[Any, str, str], Any] | None = getattr(candidate, "supports", None) or getattr(candidate, "supported", None)
    return found


def name_of(implementation: Any) -> str:
    """What a result calls it: the name that was asked for, else the object's own `name`, its function's or its class's."""
    if isinstance(implementation, str):
        return implementation
    for attribute in ("name", "__name__"):
        with suppress(Exception):  # what the candidate's own code raises
            if isinstance(name := getattr(implementation, attribute, None), str) and name:
                return str.__str__(name)
    return type(implementation).__name__


def _entry_points() -> dict[str, metadata.EntryPoint]:
    if os.environ.get(SWITCH) == "1":
        return {}
    return {e.name: e for e in sorted(metadata.entry_points(group=GROUP), key=lambda e: e.name)}


def registered() -> list[Registered]:
    """Every registered implementation, by name."""
    return [_described(e) for e in _entry_points().values()]


def _described(entry: metadata.EntryPoint) -> Registered:
    distribution = entry.dist
    name, version = (distribution.name, distribution.version) if distribution else ("unknown", "?")
    return Registered(entry.name, name, version, entry.value)


def load(implementation: str | Any) -> Implementation:
    """The implementation of that name, or made of that object (`as_implementation`).

    A name is registered, `cmd:` and the command line of a program, the file of an exported program or of a recorded trace, or
    `package.module:object`.

    Raises:
        UnknownNameError: nothing of that name, with the nearest names that there are.
        UsageError: the object is none.
        PluginError: its import failed.
    """
    if not isinstance(implementation, str):
        return as_implementation(implementation)
    name, entries = implementation, _entry_points()
    if name in entries:
        described = _described(entries[name])
        return _imported(entries[name].load, f"{name} ({described.distribution} {described.version}, {described.origin})")
    require_known(name)
    return _imported(partial(_made, name), name)


def require_known(name: str) -> None:
    """Raise `UnknownNameError` for a name that nothing is registered under, `UsageError` where there is no such program."""
    entries = _entry_points()
    if _is_command(name) and name not in entries:
        from conformance.candidates.command import arguments_of

        arguments_of(name)
    if name not in entries and ":" not in name and not _is_file(name):
        if objects := _objects_in(name):
            raise UnknownNameError(f"{name} is a module; name one of its objects: {', '.join(f'{name}:{o}' for o in objects)}")
        known = ", ".join(entries) or (f"none, since {SWITCH}=1 is set" if os.environ.get(SWITCH) == "1" else "none")
        raise UnknownNameError(f"no implementation {name!r}; {nearest(name, entries, f'registered are {known}')}")


def _objects_in(name: str) -> list[str]:
    """What a module or a file of this name, which is read and not imported, defines at its top level."""
    file = Path(name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    folders = [Path(), *map(Path, sys.path)]
    found = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if found is None:
        return []
    try:
        body = ast.parse(found.read_bytes()).body
    except (SyntaxError, ValueError):
        return []
    names = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    names += [t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)]
    return [n for n in names if not n.startswith("_")]


def _is_file(name: str) -> bool:
    return Path(name).is_file() and not name.endswith(".py")


def _is_command(name: str) -> bool:
    return name.startswith("cmd:")


def described_by(name: str) -> tuple[str, str] | None:
    """Which public class a name that is no module's is an argument of, and the argument: a command line or a file; else None."""
    if _is_command(name):
        return "Command", name
    if not _is_file(name):
        return None
    return "RecordedTrace" if Path(name).suffix == ".safetensors" else "Archive", str(Path(name).resolve())


def _made(name: str) -> Any:
    """To load an exported program may run its code, which happens to what the user names alone."""
    found = described_by(name)
    return getattr(importlib.import_module("conformance"), found[0])(found[1]) if found else resolved(name)


def resolved(name: str) -> Any:
    """The object at `package.module:object` or `FILE.py:object`.

    Raises:
        UnknownNameError: there is no such module, or it has no such object.
    """
    module, _, path = name.partition(":")
    importlib.import_module("implementations")  # ours, before a folder of that name here can take its place
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    found: Any = _from_file(Path(module)) if module.endswith(".py") else _from_path(module, name)
    for part in path.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownNameError(f"{module} has no {path!r}{hint}")
        found = getattr(found, part)
    return found


def _from_path(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UnknownNameError(f"no module {error.name!r}, here or installed, for the implementation {name!r}") from error
        raise


def _from_file(file: Path) -> Any:
    """The module in a file, which may import its neighbours."""
    if not file.is_file():
        raise UnknownNameError(f"there is no file {str(file)!r}")
    sys.path.insert(0, str(file.resolve().parent))
    try:
        return importlib.import_module(file.stem)
    finally:
        sys.path.remove(str(file.resolve().parent))


def _imported(importer: Callable[[], Any], label: str) -> Implementation:
    found = imported(importer, label)
    try:
        return as_implementation(found)
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from error
    except Exception as error:  # of an attribute that is computed
        raise PluginError(f"{label} cannot be looked into: {type(error).__name__}: {error}") from error


def imported(importer: Callable[[], Any], label: str) -> Any:
    """What the importer returns; `PluginError` with the traceback for whatever the imported code raises."""
    make_first_calls()
    try:
        return importer()
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # it may not end the process, either
        what = f"{type(error).__name__}: {error}"
        raise PluginError(f"{label} could not be imported: {what}\n{traceback.format_exc()}") from error
