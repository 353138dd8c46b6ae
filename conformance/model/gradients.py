"""The table of a backward pass, in which the gradient of an activation or a parameter is itself an activation computed from others.

`NAME.grad` is ∂L/∂NAME. The backward pass starts from L, which is a loss, or Σ c · x for any other activation x, with fixed
coefficients c. Every step of the forward pass contributes a gradient to each of its inputs and parameters (reverse accumulation:
Griewank and Walther 2008, section 3.2). The gradient of a tensor that is used more than once is the sum of its contributions, which
are internal rows that no implementation has to form.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from conformance.model.activation import SCALAR, Activation
from conformance.model.activations import outputs, table
from conformance.model.architecture import POOLINGS, Architecture
from conformance.model.heads import POOLING

SUFFIX = ".grad"
OWN = -1  # used instead of the index of a parent for the activation itself

# By kind of forward step: for each input, the suffix of the backward step's kind, and the indices of the parents that the backward
# step reads besides the upstream gradient.
_INPUTS: Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "linear": (("", ()),),
    "dropout": (("", ()),),
    "first_token_linear": (("", ()),),
    "scores": (("_query", (1,)), ("_key", (0,))),
    "query_distance_scores": (("_query", (1,)), ("_distance", (0,))),
    "key_distance_scores": (("_key", (1,)), ("_distance", (0,))),
    "context": (("_probs", (1,)), ("_value", (0,))),
    "log_softmax": (("", (OWN,)),),
    "tanh": (("", (OWN,)),),
    "mean_loss": (("", ()), ("", ())),
    **dict.fromkeys((f"{POOLING}{name}" for name in POOLINGS if name != "max"), (("", ()),)),
}
_FUNCTION = (("", (0,)),)
_IDENTITIES = ("copy", "sum", "scores_sum", "total_loss")

_EQUATIONS = {
    "linear_backward": "∂y W",
    "dropout_backward": "∂y m / (1 − p)",
    "first_token_linear_backward": "∂y W at the first token, 0 elsewhere",
    "norm_backward": "r (g − mean(g) − z mean(z g)), g = γ ∂y",
    "scores_backward_query": "∂s k / √d",
    "scores_backward_key": "∂sᵀ q / √d",
    "query_distance_scores_backward_query": "Σ_j ∂s D / √d",
    "query_distance_scores_backward_distance": "Σ ∂s q / √d over heads",
    "key_distance_scores_backward_key": "Σ_i ∂s D / √d",
    "key_distance_scores_backward_distance": "Σ ∂s k / √d over heads",
    "context_backward_probs": "∂c vᵀ",
    "context_backward_value": "probsᵀ ∂c",
    "probs_backward": "p (∂p − Σ p ∂p)",
    "log_softmax_backward": "∂l − p Σ ∂l",
    "tanh_backward": "(1 − y²) ∂y",
    **dict.fromkeys(
        (
            *("masked_lm_loss_backward", "next_sentence_loss_backward", "classification_loss_backward"),
            *("token_classification_loss_backward", "span_start_loss_backward", "span_end_loss_backward"),
            "multiple_choice_loss_backward",
        ),
        "(softmax(x) − onehot) ∂L / N at labelled rows, 0 elsewhere",
    ),
    "regression_loss_backward": "2 (x − t) ∂L / N",
    "multi_label_loss_backward": "(σ(x) − t) ∂L / N",
    "mean_loss_backward": "∂L / 2",
    **dict.fromkeys((f"{POOLING}{name}_backward" for name in POOLINGS), "a_s ∂y, a_s the share of token s"),
    f"{POOLING}max_backward": "∂y at the largest, 0 elsewhere",
    "unit_backward": "(∂y − y (y · ∂y)) / |x|",
    **dict.fromkeys(
        ("masked_lm_loss_of_log_probs_backward", "next_sentence_loss_of_log_probs_backward"),
        "−onehot ∂L / N at labelled rows, 0 elsewhere",
    ),
}

_EQUATIONS_OF_WEIGHTS = {
    "linear": "∂yᵀ x",
    "first_token_linear": "∂yᵀ x₀",
    "norm": "Σ z ∂y over tokens",
}
_OF_LOOKUPS = "Σ ∂y over the places where a row is looked up"


def grad(name: str) -> str:
    """Return the name of the gradient with respect to an activation or a parameter.

    Example:
        >>> grad("pooler.dense")
        'pooler.dense.grad'
    """
    return name + SUFFIX


def is_gradient(name: str) -> bool:
    """Return whether a name is that of a gradient or of a contribution to one.

    Example:
        >>> is_gradient("pooler.dense.grad"), is_gradient("pooler.dense.grad_input"), is_gradient("pooler.dense")
        (True, True, False)
    """
    return name.rpartition(".")[2].startswith(SUFFIX[1:])


@dataclass(frozen=True)
class _Term:
    """The contribution of one step to the gradient of an activation or parameter that the step uses.

    Attributes:
        of: name of the activation or parameter.
        name: name of the row that is the contribution.
        row: the row, or None if it was not made for this use alone.
    """

    of: str
    name: str
    row: Activation | None = None


def with_gradients(forward: Mapping[str, Activation], source: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Activation]:
    """Return the rows of a forward pass, followed by those of the backward pass that starts from `source`.

    Args:
        forward: the rows of the forward pass; activations that `source` does not depend on have no gradient.
        source: name of the activation that the backward pass starts from.
        shapes: shape of each parameter.

    Example:
        >>> from conformance import load_golden
        >>> from conformance.model.activations import parameter_shapes, table
        >>> a = load_golden("tiny").checkpoint.architecture
        >>> rows = with_gradients(table(a), "cls.loss", parameter_shapes(a))
        >>> rows["pooler.dense.grad"].parents
        ('pooler.activation.grad', 'pooler.activation')
    """
    return {**forward, **{row.name: row for row in _backward(forward, source, shapes)}}


def _backward(forward: Mapping[str, Activation], source: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Activation]:
    reached = ancestors(forward, source)
    uses = Counter(name for row in reached for name in (*row.parents, *row.parameters.values()))
    terms: defaultdict[str, list[_Term]] = defaultdict(list)
    for row in reversed(reached):  # all uses of a row come after it, so all contributions to its gradient are known by then
        yield _seed(row) if row.name == source else _gradient(row.name, terms[row.name], row)
        for term in (*_of_parameters(row, shapes), *_of_inputs(row, forward)):
            terms[term.of].append(term)
            if term.row and uses[term.of] > 1:
                yield replace(term.row, is_internal=True)
            if term.of in shapes and term.row and len(terms[term.of]) == uses[term.of]:
                yield _gradient(term.of, terms[term.of], term.row)


def ends(a: Architecture) -> set[str]:
    """Return the names of the activations that a backward pass may start from: the losses and the outputs of an architecture."""
    return {name for name, row in table(a).items() if row.axes == SCALAR} | set(outputs(a))


def sources(forward: Mapping[str, Activation], names: Collection[str]) -> list[str]:
    """Return those of the given activations that no other of them depends on; backward passes from these reach all the others."""
    inner = {row.name for name in names for row in ancestors(forward, name) if row.name != name}
    return [name for name in forward if name in names and name not in inner]


def ancestors(forward: Mapping[str, Activation], source: str) -> list[Activation]:
    """Return `source` and all activations that it depends on, in the order of computation."""
    found = {source}
    for row in reversed(list(forward.values())):
        if row.name in found:
            found.update(row.parents)
    return [row for row in forward.values() if row.name in found]


def _seed(row: Activation) -> Activation:
    equation = "1" if row.axes == SCALAR else "c at what is attended to, else 0"
    return _row(grad(row.name), "seed", (), row, equation, exact=True)


def _gradient(name: str, terms: list[_Term], like: Activation) -> Activation:
    """Return the row of a gradient: the sum of its contributions, or the only contribution."""
    first, *others = terms
    shared = like.is_same_for_all_rows  # implementations form only the gradient of the table, not this sum over the batch
    if first.row and not others:
        return replace(first.row, name=grad(name), is_internal=shared)
    kind, equation = ("sum", "the sum of the gradients of its uses") if others else ("copy", "the gradient that arrives")
    row = _row(grad(name), kind, tuple(term.name for term in terms), like, equation, exact=not others)
    layer = next((term.row.layer for term in terms if term.row), row.layer)
    return replace(row, layer=layer, is_internal=shared)


def _row(name: str, kind: str, parents: tuple[str, ...], like: Activation, equation: str, *, exact: bool = False) -> Activation:
    """Return a row with the shape and layer of `like`, without parameters."""
    return replace(
        like, name=name, kind=kind, parents=parents, equation=equation, parameters={}, exact=exact, is_internal=False, dropout=""
    )


def _weight(row: Activation) -> Mapping[str, str]:
    """Return the parameter that the backward steps of a row read."""
    return {role: name for role, name in row.parameters.items() if role == "weight"}


def _of_inputs(row: Activation, forward: Mapping[str, Activation]) -> Iterator[_Term]:
    upstream, inputs = grad(row.name), _INPUTS.get(row.kind, _FUNCTION if row.parents else ())
    if row.kind in _IDENTITIES:
        yield from (_Term(parent, upstream) for parent in row.parents)
    elif row.kind == "norm":
        # All terms of the normalized sum have the same gradient, which is computed once, as that of the last term.
        last, kind = max(row.parents, key=list(forward).index), "norm_backward"
        made = _row(grad(last), kind, (upstream, *row.parents), row, _EQUATIONS[kind])
        yield _Term(last, made.name, replace(made, parameters=_weight(row)))
        yield from (_Term(parent, made.name) for parent in row.parents if parent != last)
    else:
        for parent, (end, read) in zip(row.parents, inputs, strict=True):
            reads, kind = tuple(row.name if i == OWN else row.parents[i] for i in read), f"{row.kind}_backward{end}"
            if row.kind == "probs":
                reads = _read_of_probs(row)
            equation = _EQUATIONS.get(kind, "f′(x) ∂y")
            made = _row(f"{upstream}_input{end}", kind, (upstream, *reads), forward[parent], equation)
            yield _Term(parent, made.name, replace(made, parameters=_weight(row), layer=row.layer, dropout=row.dropout))


def _read_of_probs(row: Activation) -> tuple[str, ...]:
    """Return the names that the softmax backward step reads: the probabilities, the gradient of the context, and the values.

    The last two are needed because kernels compute Σ p ∂p from them.
    """
    attention = row.name.removesuffix(".probs")
    return row.name, grad(f"{attention}.context"), f"{attention}.value"


def _of_parameters(row: Activation, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[_Term]:
    upstream = grad(row.name)
    for role, parameter in row.parameters.items():
        if role == "bias":
            kind, reads, equation = "bias_gradient", tuple[str, ...](), "Σ ∂y over tokens"
        else:
            kind, reads, equation = f"{row.kind}_gradient", row.parents, _EQUATIONS_OF_WEIGHTS.get(row.kind, _OF_LOOKUPS)
        *height, width = shapes[parameter]
        axes = ("row", "feature") if height else ("feature",)
        name, read = f"{upstream}_{role}", {} if row.parents else _weight(row)  # for a table, which gives the number of rows
        made = Activation(name, kind, (upstream, *reads), axes, width, equation, read, layer=row.layer, height=sum(height))
        yield _Term(parameter, name, made)
