"""The registry of implementations: lookup by entry point or as `package.module:object`; a plug-in is imported only when loaded."""

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
from functools import cache, lru_cache, partial
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
    """The base protocol of implementations: any object with `prepare`, or a function with the arguments of `prepare`.

    A runner is a function of a batch. It returns a mapping of activation names to arrays (NumPy, torch, or any object with
    `__dlpack__`), or yields pairs of name and array in the order of computation. A batch has `input_ids`, `token_type_ids` and
    `attention_mask`, int64 tensors (B, S) on the device. The last two are None where a check omits them; `batch.filled()` replaces
    them with zeros and ones. `batch.numpy()` and `batch.filled().numpy()` return the same batches as NumPy arrays.

    All other attributes are optional, and used only by the checks that need them. An implementation may have

    - `supports(architecture, device, dtype)`, or the same under the name `supported`: returns None, or the reason for which a case
      is skipped;
    - `features`: names of features that it supports beyond the encoder of the paper: `relative_key`, `relative_key_query`,
      `is_decoder`, `add_cross_attention` and `pruned_heads` (of the architecture), `position_ids` and `attention_mask_3d`
      (additional inputs of a batch; a decoder with cross-attention gets `encoder_hidden_states`, (B, T, H) in float64, and
      `encoder_attention_mask`). Goldens that need a feature that is not named are skipped, with the reason;
    - `evaluation_only = True`: it is not meant to be trained.

    A runner may have

    - `gradients(batch, name, gradient)`: takes the name of an activation and the gradient with respect to it; yields the same
      activations as the runner, and each gradient as `NAME.grad` (`conformance.captured_with_gradients` does so for a module);
    - `train(mode)`: as in `nn.Module`, for `training-mode`. Dropouts are exposed like other activations, and
      `checkpoint.architecture` has their rates;
    - `trainer(training)`: for `optimizer-step` and `schedule`; maps a `conformance.Training` to a function of a batch that does one
      step and yields `NAME.grad` and `NAME` of each trained parameter (`conformance.captured_step` does so for a module);
    - `initial()`: for `initialization`; draws new parameters and yields them by the checkpoint's names.

    Example:
        A function as a candidate. Its only activation is correct, but it exposes no output of the network and does not conform:

        >>> def words(checkpoint, device, dtype):
        ...     table = checkpoint.state_dict(dtype, device)["bert.embeddings.word_embeddings.weight"]
        ...     return lambda batch: {"embeddings.word_embeddings": table[batch.input_ids]}
        >>> result = check(words, "tiny")
        >>> result.coverage, result.origins
        ((1, 47), ())
    """

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Runner:
        """Return a runner for a checkpoint on a device in a dtype.

        Args:
            checkpoint: has `architecture` (with the names of Hugging Face's config), `weights` (read-only float64 NumPy arrays by
                Hugging Face's names as in `BertForPreTraining`), `state_dict(dtype, device)` (the same weights in torch), and
                `path`, a safetensors file.
            device: torch device string, such as "cpu" or "cuda:0".
            dtype: name of the dtype, such as "float32".

        Raises:
            Unsupported: the case cannot be run; it is skipped with this reason.
        """


class Isolated:
    """The base class of implementations whose own code does not run in this process."""


@dataclass(frozen=True)
class Registered:
    """A registered implementation that has not been imported."""

    name: str
    distribution: str
    version: str
    origin: str


@dataclass(frozen=True)
class _Prepare:
    """An implementation made of a `prepare` function."""

    prepare: Callable[[Any, str, str], Runner]


def as_implementation(found: Any) -> Implementation:
    """Return an object as an implementation.

    An object with `prepare` is returned as it is; a function is used as `prepare`; an `nn.Module` or a subclass of it is mapped
    automatically.

    Raises:
        UsageError: the object is none of these, or a function with other arguments.
    """
    make_first_calls()
    if hasattr(found, "named_modules") and not hasattr(found, "prepare"):  # an `nn.Module` or a subclass of it
        from conformance.mapping.mapped import MappedModule

        return MappedModule(found, found.__name__ if isinstance(found, type) else type(found).__name__)
    if isinstance(found, type):
        raise UsageError(f"{found.__name__} is a class; give an object of it: {found.__name__}()")
    if hasattr(found, "prepare"):
        return found  # type: ignore[no-any-return]  # any object with prepare() is an implementation
    if callable(found):
        _require_arguments(found)
        return _Prepare(found)
    raise UsageError(f"{found!r} is neither an object with prepare() nor a function prepare(checkpoint, device, dtype)")


def _require_arguments(function: Callable[..., Any]) -> None:
    """Raise `UsageError` for a function that cannot be called with the arguments of `prepare`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function that is not written in Python
        return
    try:
        signature.bind("checkpoint", "device", "dtype")
    except TypeError as error:
        raise UsageError(
            f"a function that is a candidate is called with (checkpoint, device, dtype), and this one takes {signature}; of one "
            "that builds a torch.nn.Module, `bert-conformance map` makes a candidate"
        ) from error


def supports_of(candidate: Any) -> Callable[[Any, str, str], Any] | None:
    """Return the candidate's `supports`, else its `supported` (as in `TorchImplementation`); None if it has neither."""
    found: Callable[[Any, str, str], Any] | None = getattr(candidate, "supports", None) or getattr(candidate, "supported", None)
    return found


def name_of(implementation: Any) -> str:
    """Return the name used in results: the requested name, else the object's `name`, its `__name__`, or the name of its class."""
    if isinstance(implementation, str):
        return implementation
    for attribute in ("name", "__name__"):
        with suppress(Exception):  # the candidate's own code may raise any exception
            if isinstance(name := getattr(implementation, attribute, None), str) and name:
                return str.__str__(name)
    return type(implementation).__name__


def _entry_points() -> Mapping[str, metadata.EntryPoint]:
    if os.environ.get(SWITCH) == "1":
        return {}
    return _found_on(tuple((folder, _modified(folder)) for folder in sys.path))


# A scan reads a file of each installed distribution, and a run asks for the entry points at each candidate.
@lru_cache(maxsize=1)
def _found_on(path: tuple[tuple[str, int], ...]) -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points found on `sys.path`, which is given with the times of modification of its folders."""
    return {e.name: e for e in sorted(metadata.entry_points(group=GROUP), key=lambda e: e.name)}


def _modified(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except (OSError, TypeError, ValueError):  # a folder that does not exist, or an entry that is no path
        return 0


def registered() -> list[Registered]:
    """Return every registered implementation, sorted by name."""
    about = cache(_name_and_version)  # importlib parses a distribution's whole metadata at each look
    return [Registered(e.name, *about(e.dist), e.value) for e in _entry_points().values()]


def registered_origin(name: str) -> str | None:
    """Return the `module:object` of a registered implementation; None if there is none of that name."""
    entry = _entry_points().get(name)
    return None if entry is None else entry.value


def _name_and_version(distribution: metadata.Distribution | None) -> tuple[str, str]:
    if distribution is None:
        return "unknown", "?"
    found = distribution.metadata
    return found["Name"], found["Version"]


def load_implementation(implementation: str | Any) -> Implementation:
    """Return the implementation with a name, or the one made of an object (`as_implementation`).

    A name is a registered name, `cmd:` followed by the command line of a program, the path of an exported program or of a recorded
    trace, or `package.module:object`.

    Raises:
        UnknownNameError: there is no implementation of that name; the message lists the nearest names.
        UsageError: the object is not an implementation.
        PluginError: its import failed.

    Example:
        >>> runner = load_implementation("making-bert").prepare(load_golden("tiny").checkpoint, "cpu", "float32")
        >>> "embeddings.LayerNorm" in dict(runner(Batch.of({"input_ids": [[1, 2, 3]]}).on("cpu")))
        True
    """
    if not isinstance(implementation, str):
        return as_implementation(implementation)
    name, entries = implementation, _entry_points()
    if name in entries:
        entry = entries[name]
        return _imported(entry.load, f"{name} ({' '.join(_name_and_version(entry.dist))}, {entry.value})")
    require_known(name)
    return _imported(partial(_made, name), name)


def require_known(name: str) -> None:
    """Check, without importing it, that an implementation of that name can exist.

    Raises:
        UnknownNameError: the name is not registered, and neither a file, a command nor `module:object`.
        UsageError: the program of a command does not exist.
    """
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
    """Return the public names that a module or file defines at its top level; its source is parsed, not imported."""
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
    """Return the public class for a command line or file, and its argument; None for a name of any other kind."""
    if _is_command(name):
        return "Command", name
    if not _is_file(name):
        return None
    return "RecordedTrace" if Path(name).suffix == ".safetensors" else "Archive", str(Path(name).resolve())


def _made(name: str) -> Any:
    """Make the implementation with a name that is not registered. Loading an exported program may run code in the file."""
    found = described_by(name)
    return getattr(importlib.import_module("conformance"), found[0])(found[1]) if found else resolved(name)


def resolved(name: str) -> Any:
    """Return the object at `package.module:object` or `FILE.py:object`.

    Raises:
        UnknownNameError: there is no such module or file, or it has no such object.
    """
    module, _, path = name.partition(":")
    importlib.import_module("implementations")  # imported first, so that a local folder of that name cannot shadow it
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
    """Return the module in a file; it may import other modules of its folder."""
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
    except Exception as error:  # a computed attribute may raise any exception
        raise PluginError(f"{label} cannot be looked into: {type(error).__name__}: {error}") from error


def imported(importer: Callable[[], Any], label: str) -> Any:
    """Return the result of `importer`.

    Raises:
        PluginError: the imported code raised an exception or tried to exit; the message contains the traceback.
    """
    make_first_calls()
    try:
        return importer()
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit must not end the process either
        what = f"{type(error).__name__}: {error}"
        raise PluginError(f"{label} could not be imported: {what}\n{traceback.format_exc()}") from error
