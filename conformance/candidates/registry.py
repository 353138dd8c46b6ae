"""Implementations: their protocol, a runner of a module, and the loading of one by its name; a plug-in is imported only then."""

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from conformance.candidates.lookup import (
    TRACE,
    described_by,
    entry_points,
    is_command,
    name_and_version,
    require_known,
    require_one,
    resolved,
)
from conformance.errors import CandidateNameError, PluginError, Unsupported, UsageError
from conformance.names import class_name, described_error
from conformance.numerics.first_calls import make_first_calls

if TYPE_CHECKING:
    from torch import nn

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
      step and yields `NAME.grad` and `NAME` of each trained parameter (`conformance.captured_step` does so for a module), and may
      yield `NAME` of others, whose gradient is then judged as 0;
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
    """The base class of implementations and runners whose own code does not run in this process; runners have `surroundings`."""


@dataclass(frozen=True)
class _Prepare:
    """An implementation made of a `prepare` function."""

    prepare: Callable[[Any, str, str], Runner]


def as_implementation(found: Any) -> Implementation:
    """Return an object as an implementation.

    An object with `prepare` is returned as it is; a function is used as `prepare`; an `nn.Module`, a subclass of it, or a function
    that builds one from sizes with usual names is mapped automatically.

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
        return _of_function(found)
    raise UsageError(f"{found!r} is neither an object with prepare() nor a function prepare(checkpoint, device, dtype)")


def _of_function(function: Callable[..., Any]) -> Implementation:
    """Return a function with the arguments of `prepare` as an implementation; one that takes sizes of a module is mapped.

    Raises:
        UsageError: it takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function that is not written in Python
        return _Prepare(function)
    from conformance.mapping.mapped import mapped_builder

    name = getattr(function, "__name__", "")
    if mapped := mapped_builder(function, name):
        return mapped
    try:
        signature.bind("checkpoint", "device", "dtype")
    except TypeError as error:
        home = getattr(function, "__module__", "my_module")
        raise UsageError(
            f"a function that is a candidate is called with (checkpoint, device, dtype), and this one takes {signature}; if it "
            f"builds a torch.nn.Module, run: bert-conformance map {home}:{name} -o adaptor.py"
        ) from error
    return _Prepare(function)


def supports_of(candidate: Any) -> Callable[[Any, str, str], Any] | None:
    """Return the candidate's `supports`, else its `supported` (as in `TorchImplementation`); None if it has neither."""
    found: Callable[[Any, str, str], Any] | None = getattr(candidate, "supports", None) or getattr(candidate, "supported", None)
    return found


def is_instrumented(candidate: Any) -> bool:
    """Return whether observing a candidate's activations may change how it is run: its attribute `unobserved` is another one."""
    with suppress(Exception):  # the candidate's own attributes may raise anything
        return getattr(candidate, "unobserved", candidate) is not candidate
    return False


def name_of(implementation: Any) -> str:
    """Return the name used in results: the requested name, else the object's `name`, its `__name__`, or the name of its class."""
    if isinstance(implementation, str):
        return implementation
    for attribute in ("name", "__name__"):
        with suppress(Exception):  # the candidate's own code may raise any exception
            if isinstance(name := getattr(implementation, attribute, None), str) and name:
                return str.__str__(name)
    return class_name(implementation)


def load_implementation(implementation: str | Any) -> Implementation:
    """Return the implementation with a name, or the one made of an object (`as_implementation`).

    A name is a registered name, `cmd:` followed by the command line of a program, the path of an exported program or of a recorded
    trace, or `package.module:object`.

    Raises:
        CandidateNameError: there is no implementation of that name; the message lists the nearest names.
        UsageError: the object is not an implementation.
        PluginError: its import failed.

    Example:
        >>> runner = load_implementation("making-bert").prepare(load_golden("tiny").checkpoint, "cpu", "float32")
        >>> "embeddings.LayerNorm" in dict(runner(Batch.of({"input_ids": [[1, 2, 3]]}).on("cpu")))
        True
    """
    if not isinstance(implementation, str):
        return as_implementation(implementation)
    name, entries = implementation, entry_points()
    if name in entries:
        require_one(name)
        entry = entries[name]
        return _imported(entry.load, f"{name} ({' '.join(name_and_version(entry.dist))}, {entry.value})")
    require_known(name)
    if is_command(name):
        from conformance.isolation.remote import program

        return program(name)
    return _imported(partial(_made, name), name, CandidateNameError)


def _made(name: str) -> Any:
    """Make the implementation with a name that is not registered. Loading an exported program may run code in the file."""
    path = described_by(name)
    if path is None:
        return resolved(name)
    from conformance import Archive, RecordedTrace

    return RecordedTrace(path) if path.endswith(TRACE) else Archive(path)


def _imported(importer: Callable[[], Any], label: str, unfit: type[UsageError] = UsageError) -> Implementation:
    """Return the result of `importer` as an implementation; raise `unfit` if it is none."""
    found = imported(importer, label)
    try:
        return as_implementation(found)
    except UsageError as error:
        raise unfit(f"{label}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a computed attribute may raise any exception
        raise PluginError(f"{label} could not be loaded: {described_error(error)}") from error


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
        raise PluginError(f"{label} could not be imported: {described_error(error)}\n{traceback.format_exc()}") from error


@dataclass(frozen=True, eq=False)
class ModuleRunner:
    """A runner together with the module that it runs.

    Attributes:
        module: the module that is run, not a copy of it.
        call: maps a batch to a mapping of activations by name, or to pairs of name and activation.
        gradients: maps a batch, the name of an activation and the gradient with respect to that activation to the activations and,
            under `NAME.grad`, the gradients, as `conformance.captured_with_gradients` yields them; None: there is no backward pass.
        evaluation_only: whether the module is not judged in training mode: it is not meant to be trained and has no dropout, or its
            dropout rates are fixed.
        trainer: maps a `conformance.Training` to a function that does one training step on a batch and returns what
            `conformance.captured_step` yields; None: there is no training loop.
        initial: yields the checkpoint's name and the value of each parameter before training, newly drawn from torch's random
            number generator for the prepared architecture; None: the values at the start of training are not available.

    Example:
        >>> runner = ModuleRunner(nn.Identity(), lambda batch: {"logits": batch})
        >>> runner(1.0)
        {'logits': 1.0}
    """

    module: "nn.Module"
    call: Callable[[Any], Any]
    gradients: Callable[[Any, str, Any], Any] | None = None
    evaluation_only: bool = False
    trainer: Callable[[Any], Callable[[Any], Any]] | None = None
    initial: Callable[[], Any] | None = None

    def __call__(self, batch: Any) -> Any:
        """Run the module on a batch."""
        return self.call(batch)

    def train(self, mode: bool = True) -> None:
        """Set training mode or eval mode, as `nn.Module.train`.

        Raises:
            Unsupported: training mode is requested, and the module is for evaluation only.
        """
        if mode and self.evaluation_only:
            raise Unsupported("`evaluation_only=True` in the adaptor (`map` writes it if the constructor takes no dropout rates)")
        self.module.train(mode)
