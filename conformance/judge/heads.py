"""The heads whose features stand side by side along the last axis of an activation."""

from conformance.model.activation import Activation


def heads_in(row: Activation, width: int, head_size: int) -> int:
    """Return the number of heads whose features stand side by side along the last axis; 0 if they do not.

    Queries, keys, values, contexts, their gradients and those of the biases are such activations. The last axis of a weight's
    gradient and of `linear_backward` is the input of a projection, and a distance embedding is shared by the heads.

    Args:
        row: the activation's row of the table.
        width: length of the last axis, which is shorter in a layer with pruned heads.
        head_size: number of features of a head.

    Example:
        >>> from conformance import load_golden
        >>> from conformance.model.activations import table
        >>> a = load_golden("pruned-heads").checkpoint.architecture
        >>> queries = [table(a)[f"encoder.layer.{i}.attention.self.query"] for i in range(a.num_hidden_layers)]
        >>> [heads_in(row, row.width, a.head_size) for row in queries], a.num_attention_heads
        ([2, 3], 4)
    """
    projected = row.axes[-1:] == ("feature",) and not {"query", "row"} & set(row.axes) and row.kind != "linear_backward"
    return width // head_size if projected and "attention.self." in row.name and width % head_size == 0 else 0
