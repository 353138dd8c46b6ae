"""Mistakes in the order of rows and of tokens, results of another row, and attention to other rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Plant, after, in_layer, override
from conformance.benchmarks.detection.steps import hidden_keys
from conformance.model.architecture import Architecture

VALUE, CONTEXT = "attention.self.value", "attention.self.context"

# A function from (B, S, …) to (B', S', …), in which tokens attend to those of the same B'.
Grouping = Callable[[Tensor], Tensor]


def _moved(name: str, description: str, change: Callable[[Tensor], Tensor]) -> Plant:
    return in_layer(name, description, lambda model, layer: after(model.layer(layer).attention.self.value, change), VALUE)


def _first_of_first_row(x: Tensor) -> Tensor:
    """Let the first three tokens of every row have the results of the first row."""
    return torch.cat([x[:1, :3].expand(len(x), -1, -1), x[:, 3:]], 1)


def _packed(model: Bert, layer: int) -> None:
    """Write the results of a layer's unmasked tokens to the beginning of each row."""
    changed = model.layer(layer)
    right, masks = changed.forward, list[Tensor]()

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        masks.append(mask)
        out: Tensor = right(hidden, mask)
        return out

    def moved(x: Tensor) -> Tensor:
        mask = masks.pop()
        order = mask.sort(dim=1, descending=True, stable=True).indices
        return x.gather(1, order[..., None].expand_as(x)) * mask.gather(1, order)[..., None].to(x.dtype)

    override(changed, "forward", forward)
    after(changed.output.LayerNorm, moved)


def _of_one_product(architecture: Architecture) -> bool:
    return not (architecture.is_decoder or architecture.has_relative_positions)


def _other_rows(name: str, description: str, grouping: Grouping, back: Grouping, *, masked: bool) -> Plant:
    """Return a mistake in which the context is that of another grouping of the tokens; scores and probabilities remain right."""

    def install(model: Bert, layer: int) -> None:
        own = model.layer(layer).attention.self

        def forward(hidden: Tensor, mask: Tensor) -> Tensor:
            query, key, value = own.query(hidden), own.key(hidden), own.value(hidden)
            own.dropout(own.probs(own.scores(query, key), mask))
            q, k, v = (own.scores.split(grouping(x)) for x in (query, key, value))
            scores = own.scores.product(q, k)
            attended = grouping(mask if masked else torch.ones_like(mask))[:, None, None, :] == 1
            among = torch.softmax(hidden_keys(scores, attended), -1) @ v
            moved.append(back(own.context.merge(among)).reshape(value.shape))
            context: Tensor = own.context(None, None)
            return context

        moved = list[Tensor]()
        override(own.context, "forward", lambda _, __: moved.pop())
        override(own, "forward", forward)

    return in_layer(name, description, install, CONTEXT, suits=_of_one_product)


def _exchanged(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def _in_one(x: Tensor) -> Tensor:
    return x.flatten(0, 1)[None]


PLANTS = (
    *(
        _other_rows(f"{name}{end}", f"{description}{clause}", grouping, back, masked=masked)
        for name, description, grouping, back in (
            ("attention-along-batch", "a token attends to the tokens at its position in all rows", _exchanged, _exchanged),
            ("attention-over-rows", "a token attends to the tokens of all rows", _in_one, lambda x: x),
        )
        for end, clause, masked in (("", ", without padding", True), ("-unmasked", ", padding included", False))
    ),
    _moved("rows-first", "the values of every row are those of the first row", lambda x: x[:1].expand_as(x).contiguous()),
    _moved("rows-other", "the values' rows in reverse order", lambda x: x.flip(0)),
    in_layer("tokens-packed-left-norm", "a layer's results of the unmasked tokens are written to the beginning of each row",
             _packed, "output.LayerNorm", reported_as="tokens-packed-left"),
    _moved("tokens-other", "the first three tokens of every row have the values of the first row's", _first_of_first_row),
    _moved("tokens-shifted", "each token has the value of the token before it", lambda x: x.roll(1, 1)),
)  # fmt: skip
