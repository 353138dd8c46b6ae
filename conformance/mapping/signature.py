"""Determination of how a module is built, by the usual names of sizes, and what it then requires of a checkpoint."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from torch import nn

from conformance.candidates.layouts import expanded
from conformance.errors import UsageError
from conformance.model.activations import parameters_of_head
from conformance.model.architecture import Architecture

# Names of arguments, without underscores, for each expression of the architecture `a`.
_SYNONYMS: Mapping[str, str] = {
    "a.vocab_size": "vocab vocabsize dvocab vocabulary vocabularysize nvocab numvocab numtokens ntokens ntoken numembeddings "
    "nwords npieces vocablen vocablength sizevocab",
    "a.hidden_size": "hidden hiddensize hiddendim dmodel dim width embed embeddim embdim embsize embedsize embeddingdim nembd "
    "dhidden modeldim dimmodel hiddenwidth embeddingwidth units emb embeddingsize encoderdim ddim featuresize",
    "a.num_hidden_layers": "layers nlayers numlayers nlayer depth numhiddenlayers nhiddenlayers nblocks numblocks blocks "
    "numencoderlayers numlayer nblock numblock encoderlayers numtransformerlayers",
    "a.num_attention_heads": "heads nheads numheads nhead numattentionheads nattentionheads attnheads attentionheads nattnheads "
    "numattnheads numhead",
    "a.intermediate_size": "intermediate intermediatesize dff ff dmlp ffdim ffndim mlpdim inner dinner ninner dimfeedforward "
    "ffn mlp ffnhiddensize feedforwarddim feedforwardsize intermediatewidth mlpwidth ffnsize ffsize mlpsize innersize innerdim "
    "dffn feedforward feedforwardhidden dintermediate intermediatedim ffhidden mlphidden mlphiddendim ffnhidden dimff "
    "filtersize",
    "a.max_position_embeddings": "maxlen maxlength maxseqlen maxseqlength maxpositions maxpositionembeddings positions "
    "npositions blocksize contextlength nctx longest seqlen maxsequencelength numpositions contextsize maxseq maxpos "
    "maxposition numpos contextlen ctxlen ctx sequencelength seqlength maxtokens",
    "a.type_vocab_size": "segments nsegments numsegments nsegment typevocab typevocabsize numtypes ntypes kinds nkinds "
    "tokentypes numtokentypes segmentvocab typesize segmentsize numsegs nsegs nsegmenttypes tokentypevocabsize",
    "a.position_offset": "positionoffset positionsoffset posoffset firstposition",
    "a.layer_norm_eps": "eps layernormeps normeps lneps epsilon layernormepsilon lnepsilon normepsilon epsln",
    "a.head_size": "headsize headdim dimhead dhead dk",
    "a.intermediate_size // a.hidden_size": "ffmult mlpratio mult expansion ffnmult",
    "a.hidden_act": "act actfn activation activationfn activationfunction hiddenact hiddenactivation nonlinearity",
    "a.hidden_dropout_prob": "dropout pdrop drop hiddendropout hiddendropoutprob dropoutrate residpdrop",
    "a.attention_probs_dropout_prob": "attndropout attentiondropout attentionprobsdropoutprob attnpdrop",
}
_EXPRESSION_OF = {name: expression for expression, names in _SYNONYMS.items() for name in names.split()}
# Names of the intermediate size in a constructor that has another argument for the hidden size, and of the hidden size in others.
_EITHER = ("hiddendim", "dhidden", "hidden")
_EVERY_BERT_HAS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_ARCHITECTURES = ("a", "arch", "architecture")  # as in `build` of a `TorchImplementation`
_CONFIGS = ("config", "cfg", "conf", "args", "hparams", "hp", "options", "params", "c")


@dataclass(frozen=True)
class Requirement:
    """A condition on the architecture `a`.

    Attributes:
        lacking: Python expression in terms of `a` that is true if the condition is violated.
        reason: reason for skipping a case that violates the condition.
    """

    lacking: str
    reason: str


FOUR_TIMES = Requirement("a.intermediate_size != 4 * a.hidden_size", "it needs intermediate_size == 4 * hidden_size")
# The fields that change what a module of the same tensors computes, with the parameter on whose shape a size depends, if any.
_SETTINGS = {
    "hidden_act": "",
    "layer_norm_eps": "",
    "position_embedding_type": "",
    "position_offset": "",
    "max_position_embeddings": "bert.embeddings.position_embeddings.weight",
    "type_vocab_size": "bert.embeddings.token_type_embeddings.weight",
}
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
_SAME_FUNCTION = ("gelu_new", "gelu_pytorch_tanh")  # two names of GELU in its tanh form
_POOLER = Requirement("not a.pooler", "it has a pooler, which this architecture has not")


def requirements(builder: "Builder", used: Sequence[str], a: Architecture, computes: str = "") -> Iterator[Requirement]:
    """Yield the conditions on an architecture: it has the module's parameters, and the settings that the module cannot be given.

    A module with another constant than the setting it was examined with is wrong on the networks that have this setting, and is
    judged there; `run` names the mistake.

    Args:
        builder: how the module is built.
        used: Hugging Face's names of the parameters that the module holds, with `{layer}`.
        a: the architecture with which the module was examined.
        computes: another activation function that it was seen to compute, which is accepted as well.
    """
    if "intermediate_size" not in builder.given and not builder.is_instance:
        yield FOUR_TIMES
    names = {name for pattern in used for name in expanded(pattern, a.num_hidden_layers)}
    if any(name.startswith("bert.pooler.") for name in names):
        yield _POOLER
    for head in a.heads:
        if not names.isdisjoint(parameters_of_head(head, a)):
            yield Requirement(f'"{head}" not in a.heads', f"it has the head {head}, which this architecture has not")
    fixed = [name for name, table in _SETTINGS.items() if not table or table in used]
    for name in dict.fromkeys((*(_SIZES if builder.is_instance else ()), *fixed)):
        if name not in builder.given:
            yield _fixed_to(name, _alternatives(getattr(a, name), computes if name == "hidden_act" else ""))


def _alternatives(value: object, other: str) -> list[object]:
    """Return the accepted values of a field: its value and, of an activation function, another one, by all their names."""
    found = [value, *([other] if other else [])]
    return found + [name for name in _SAME_FUNCTION if name not in found and not set(_SAME_FUNCTION).isdisjoint(found)]


def _fixed_to(name: str, values: Sequence[object]) -> Requirement:
    written = [f'"{v}"' if isinstance(v, str) else repr(v) for v in values]
    lacking = f"a.{name} != {written[0]}" if len(written) == 1 else f"a.{name} not in ({', '.join(written)})"
    return Requirement(lacking, f"it takes no {name}, and is judged with {' or '.join(map(str, values))} alone")


@dataclass(frozen=True)
class Builder:
    """A Python expression that builds the module.

    Attributes:
        text: the expression, in terms of the architecture `a`.
        objects: objects that the expression uses, by name.
        open: messages about undecided arguments.
    """

    text: str
    objects: Mapping[str, Any]
    open: tuple[str, ...] = ()

    @property
    def is_instance(self) -> bool:
        """Whether the module was built before, so that it is copied."""
        return "deepcopy" in self.objects

    @property
    def given(self) -> frozenset[str]:
        """The names of the fields of the architecture that the expression gives to the module; all if it gives the architecture."""
        named = re.findall(r"\ba\.(\w+)", self.text)
        return frozenset(f.name for f in fields(Architecture) if f.name in named or self.is_of_architecture)

    @property
    def is_of_architecture(self) -> bool:
        """Whether the only argument is the architecture itself."""
        return self.text.endswith("(a)")

    def build(self, a: Architecture) -> nn.Module:
        """Build the module; exceptions of the constructor are not caught.

        Raises:
            UsageError: the result is not a module.
        """
        made = eval(self.text, namespace(self.objects), {"a": a})
        if not isinstance(made, nn.Module):
            raise UsageError(f"{self.text} is a {type(made).__name__}, expected a torch.nn.Module")
        return made


def namespace(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names for the evaluation of a text; an object such as `Holder.bert` is an attribute there as well.

    Example:
        >>> namespace({"Holder.bert": 1})["Holder"].bert
        1
    """
    found = dict[str, Any]()
    for name, value in objects.items():
        first, *others = name.split(".")
        for part in reversed(others):
            value = SimpleNamespace(**{part: value})
        found[first] = value
    return found


def builder_of(factory: Any, name: str) -> Builder:
    """Return the builder for a class, a function, or an existing module.

    Raises:
        UsageError: it is none of these, or an argument without a default has no known name of a size.
    """
    if isinstance(factory, nn.Module):
        note = "an instance has the sizes that it was built with: it can be run on a checkpoint of these alone"
        return Builder(f"deepcopy({name})", {name: factory, "deepcopy": deepcopy}, (note,))
    if not callable(factory):
        raise UsageError(f"{name} is {factory!r:.60}, and neither a torch.nn.Module nor a class or function that builds one")
    arguments, unknown = _arguments(factory, name)
    config = [p for p in unknown if p.lower() in _CONFIGS] or ([] if arguments or unknown else _optional_config(factory, name))
    if config and set(unknown) <= set(config):
        return _configured(factory, name, config[0])
    if not arguments and len(unknown) == 1 and unknown[0].lower() in _ARCHITECTURES:
        return Builder(f"{name}(a)", {name: factory})
    if not arguments and not unknown and _takes_any_keyword(factory):
        raise UsageError(
            f"{name} takes its sizes as **{_takes_any_keyword(factory)}, which has no names: name them, such as "
            "def __init__(self, vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, ...)"
        )
    if unknown:
        raise UsageError(
            f"What is {', '.join(unknown)} of {name}? It has no default, and its name is no usual name of a size. Write in its "
            f"file `def build(vocab, hidden, layers, heads, intermediate, maxlen, segments, eps): return {name}(...)`, and run "
            f"`bert-conformance map {getattr(factory, '__module__', 'my_module')}:build`"
        )
    kept = tuple(_defaults_kept(factory, name, arguments))
    return Builder(f"{name}({_joined(arguments)})", {name: factory}, kept)


def takes_sizes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function needs only arguments with usual names of sizes, and takes at least the hidden size by one.

    A function that can be called like `prepare`, by position, and only whose first name is that of a configuration, takes none.
    """
    try:
        builder = builder_of(function, name)
    except UsageError:
        return False
    return "hidden_size" in builder.given and not (builder.is_of_architecture and _takes(function, "checkpoint", "device", "dtype"))


def _takes(function: Callable[..., Any], *positional: object) -> bool:
    """Return whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*positional)
    except TypeError:
        return False
    return True


def parameters_of(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Return the parameters of a function or class, with the annotations that are strings evaluated where all of them can be.

    Raises:
        UsageError: Python has no signature of it, as of TorchScript and of most code that is not written in Python.
    """
    with suppress(Exception):  # an annotation is any code, such as a name that is imported for type checking alone
        return list(inspect.signature(function, eval_str=True).parameters.values())
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} is a {type(function).__name__}, whose arguments Python cannot tell: give a class or function that is written "
            "in Python and not compiled by torch.jit"
        ) from error


def _configured(factory: Any, name: str, parameter: str) -> Builder:
    """Return the builder for a module with a configuration argument.

    The configuration is of the annotated class, else of that of its default, else of the only class of the same Python module with
    `config` in its name, else the architecture itself.
    """
    config = _annotated(factory, parameter) or _class_of_default(factory, parameter) or _only_config(factory)
    if config is None:
        note = f"{parameter} is given the architecture itself, whose sizes have the names of Hugging Face's config"
        return Builder(f"{name}(a)", {name: factory}, (note,))
    arguments, unknown = _arguments(config, config.__name__)
    if unknown:
        raise UsageError(f"{name}: what is the argument {', '.join(unknown)} of {config.__name__}? It has no default")
    objects = {name: factory, config.__name__: config}
    kept = tuple(_defaults_kept(config, config.__name__, arguments))
    return Builder(f"{name}({config.__name__}({_joined(arguments)}))", objects, kept)


def _arguments(factory: Callable[..., Any], name: str) -> tuple[dict[str, str], list[str]]:
    """Return the expression of each argument with a known name, and the unknown arguments without a default."""
    known, unknown = {}, []
    for parameter in parameters_of(factory, name):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        is_required = parameter.default is parameter.empty
        expression = _EXPRESSION_OF.get(parameter.name.lower().replace("_", ""))
        # A default that is a function or an enumeration member cannot be replaced by a name.
        is_object = not (is_required or parameter.default is None or isinstance(parameter.default, str))
        if expression and not (expression == "a.hidden_act" and is_object):
            known[parameter.name] = expression
        elif is_required:
            unknown.append(parameter.name)
    return _with_distinct_sizes(known), unknown


def _with_distinct_sizes(known: Mapping[str, str]) -> dict[str, str]:
    """Return the expressions; of two names of the hidden size, `hidden_dim` is that of the intermediate size."""
    of_hidden = [name for name, expression in known.items() if expression == "a.hidden_size"]
    either = [name for name in of_hidden if name.lower().replace("_", "") in _EITHER]
    is_other = len(of_hidden) == 2 and len(either) == 1 and "a.intermediate_size" not in known.values()
    return {**known, **(dict.fromkeys(either, "a.intermediate_size") if is_other else {})}


def _takes_any_keyword(factory: Callable[..., Any]) -> str:
    """Return the name of the factory's own `**` argument; an empty string if it has none."""
    if isinstance(factory, type) and getattr(factory, "__init__", None) is nn.Module.__init__:
        return ""
    return next((p.name for p in inspect.signature(factory).parameters.values() if p.kind is p.VAR_KEYWORD), "")


def _defaults_kept(factory: Callable[..., Any], name: str, arguments: Mapping[str, str]) -> Iterator[str]:
    """Yield a message if an essential size has no argument, and integer arguments keep defaults that may be this size."""
    lacking = [size for size in _EVERY_BERT_HAS if f"a.{size}" not in arguments.values()]
    parameters = inspect.signature(factory).parameters.values()
    kept = [f"{p.name}={p.default}" for p in parameters if type(p.default) is int and p.name not in arguments]
    if lacking and kept:
        yield (
            f"no argument of {name} is known to be {', '.join(lacking)}, and {', '.join(kept)} keep their defaults; give a "
            "function that sets them"
        )


def _optional_config(factory: Callable[..., Any], name: str) -> list[str]:
    """Return the name of the first argument if it is a configuration with a default: None, or an object of a class of its own."""
    first = parameters_of(factory, name)[:1]
    return [p.name for p in first if p.name.lower() in _CONFIGS and (p.default is None or _class_of_default(factory, p.name))]


def _class_of_default(factory: Callable[..., Any], parameter: str) -> type | None:
    """Return the class of an argument's default; None if there is no default, or one of a class of Python's."""
    default = inspect.signature(factory).parameters[parameter].default
    is_own = default is not inspect.Parameter.empty and type(default).__module__.partition(".")[0] not in sys.stdlib_module_names
    return type(default) if is_own else None


def _annotated(factory: Any, parameter: str) -> Any:
    try:
        init = getattr(factory, "__init__") if isinstance(factory, type) else factory  # noqa: B009  # it may be inherited
        hints = get_type_hints(factory if init is object.__init__ else init)
    except (NameError, TypeError):
        return None
    found = hints.get(parameter)
    alternatives = [kind for kind in get_args(found) if kind is not type(None)]
    found = alternatives[0] if len(alternatives) == 1 and type(None) in get_args(found) else found  # of `Config | None`
    return found if isinstance(found, type) and found is not dict else None


def _only_config(factory: Any) -> Any:
    home = sys.modules.get(getattr(factory, "__module__", ""))
    found = [v for n, v in vars(home).items() if isinstance(v, type) and "config" in n.lower()] if home else []
    return found[0] if len(found) == 1 else None


def _joined(arguments: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={expression}" for name, expression in arguments.items())
