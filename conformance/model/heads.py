"""The rows of the pooler, heads, losses and sentence embedding in the table of activations."""

from collections.abc import Iterator
from dataclasses import replace

from conformance.model.activation import HIDDEN, SCALAR, SENTENCE, Activation, affine
from conformance.model.architecture import MULTI_LABEL, REGRESSION, Architecture, Dense

POOLING = "pooling-"  # prefix of the kinds of pooling, followed by the name
_POOLED = {
    "cls": "x₀, the first token",
    "mean": "Σ m x / Σ m over the tokens, m the mask",
    "mean-sqrt-length": "Σ m x / √Σ m over the tokens, m the mask",
    "weighted-mean": "Σ s m x / Σ s m over the tokens, m the mask, s = 1, 2, … the place in the row",
    "max": "the largest of each feature over the tokens that are not padding",
    "last": "x of the last token that is not padding",
}


def head_rows(a: Architecture, hidden: str) -> Iterator[Activation]:
    """Yield the rows of the pooler, of every head with its loss, and of the sentence embedding."""
    if a.pooler:
        pooler = "pooler.dense"
        parameters, equation = affine(f"bert.{pooler}"), "W x₀ + b, x₀ the first token"
        yield Activation(pooler, "first_token_linear", (hidden,), SENTENCE, a.hidden_size, equation, parameters)
        yield Activation("pooler.activation", "tanh", (pooler,), SENTENCE, a.hidden_size, "tanh(x)")
    losses = []
    for head, rows in _HEADS.items():
        if head in a.heads:
            for row in rows(a, hidden):
                losses += [row.name] if row.name in ("cls.predictions.loss", "cls.seq_relationship.loss") else []
                yield row
    if a.pooling:
        yield from _sentence_embedding(a, hidden)
    if len(losses) == 2:
        yield Activation("cls.loss", "total_loss", tuple(losses), SCALAR, 0, "masked-LM loss + next-sentence loss")


def _masked_lm(a: Architecture, hidden: str) -> Iterator[Activation]:
    path, width = "cls.predictions", a.hidden_size
    dense, act, norm = (f"{path}.transform.{n}" for n in ("dense", "transform_act_fn", "LayerNorm"))
    yield Activation(dense, "linear", (hidden,), HIDDEN, width, "x Wᵀ + b", affine(dense))
    yield Activation(act, a.hidden_act, (dense,), HIDDEN, width, f"{a.hidden_act}(x)")
    yield Activation(norm, "norm", (act,), HIDDEN, width, "LayerNorm(x)", affine(norm))
    tied = {"weight": "bert.embeddings.word_embeddings.weight", "bias": f"{path}.bias"}
    yield Activation(f"{path}.decoder", "linear", (norm,), HIDDEN, a.vocab_size, "x Eᵀ + b, E the word embeddings", tied)
    yield _loss(f"{path}.loss", "masked_lm_loss", f"{path}.decoder", "tokens")


def _next_sentence(a: Architecture, hidden: str) -> Iterator[Activation]:
    pair = "cls.seq_relationship"
    yield Activation(pair, "linear", ("pooler.activation",), SENTENCE, 2, "x Wᵀ + b", affine(pair))
    yield _loss(f"{pair}.loss", "next_sentence_loss", pair, "pairs, 0 = is next")


def _plain_masked_lm(a: Architecture, hidden: str) -> Iterator[Activation]:
    decoder, size = "cls.predictions.decoder", a.vocab_size
    own = {"weight": f"{decoder}.weight", "bias": "cls.predictions.bias"}
    yield Activation(decoder, "linear", (hidden,), HIDDEN, size, "x Wᵀ + b", own)
    log_probs = "cls.predictions.log_probs"
    yield Activation(log_probs, "log_softmax", (decoder,), HIDDEN, size, "log softmax over the vocabulary")
    yield _loss("cls.predictions.loss", "masked_lm_loss_of_log_probs", log_probs, "tokens")


def _plain_next_sentence(a: Architecture, hidden: str) -> Iterator[Activation]:
    pair = "cls.seq_relationship"
    yield Activation(pair, "first_token_linear", (hidden,), SENTENCE, 2, "W x₀ + b, x₀ the first token", affine(pair))
    yield Activation(f"{pair}.log_probs", "log_softmax", (pair,), SENTENCE, 2, "log softmax over the two")
    yield _loss(f"{pair}.loss", "next_sentence_loss_of_log_probs", f"{pair}.log_probs", "pairs, 0 = is next")


def _classifier(a: Architecture, inputs: str, axes: tuple[str, ...], classes: int) -> Iterator[Activation]:
    if a.classifier_dropout:
        yield Activation("dropout", "copy", (inputs,), axes, a.hidden_size, "identity in eval mode", exact=True)
        inputs = "dropout"
    yield Activation("classifier", "linear", (inputs,), axes, classes, "x Wᵀ + b", affine("classifier"))


def _classification(a: Architecture, hidden: str) -> Iterator[Activation]:
    yield from _classifier(a, "pooler.activation", SENTENCE, a.num_labels)
    if a.problem == REGRESSION:
        yield Activation("classifier.loss", "regression_loss", ("classifier",), SCALAR, 0, "mean (x − t)²")
    elif a.problem == MULTI_LABEL:
        equation = "mean of max(x, 0) − t x + log(1 + exp(−|x|)), the binary cross entropy of each label"
        yield Activation("classifier.loss", "multi_label_loss", ("classifier",), SCALAR, 0, equation)
    else:
        yield _loss("classifier.loss", "classification_loss", "classifier", "rows")


def _token_classification(a: Architecture, hidden: str) -> Iterator[Activation]:
    yield from _classifier(a, hidden, HIDDEN, a.num_labels)
    yield _loss("classifier.loss", "token_classification_loss", "classifier", "tokens")


def _multiple_choice(a: Architecture, hidden: str) -> Iterator[Activation]:
    """Yield one logit per row of the batch and the loss; the rows of a question are consecutive."""
    yield from _classifier(a, "pooler.activation", SENTENCE, 1)
    yield _loss("classifier.loss", "multiple_choice_loss", "classifier", "questions, its rows as classes")


def _question_answering(a: Architecture, hidden: str) -> Iterator[Activation]:
    """Yield the start and end logits of every position and the losses."""
    span = "qa_outputs"
    yield Activation(span, "linear", (hidden,), HIDDEN, 2, "x Wᵀ + b, start and end", affine(span))
    losses = (f"{span}.start_loss", f"{span}.end_loss")
    for name, which in zip(losses, ("start", "end"), strict=True):
        equation = f"mean cross entropy over labelled rows, the positions as classes, of the {which} logits"
        yield Activation(name, f"span_{which}_loss", (span,), SCALAR, 0, equation)
    yield Activation(f"{span}.loss", "mean_loss", losses, SCALAR, 0, "(start loss + end loss) / 2")


_HEADS = {
    "masked_lm": _masked_lm,
    "next_sentence": _next_sentence,
    "plain_masked_lm": _plain_masked_lm,
    "plain_next_sentence": _plain_next_sentence,
    "classification": _classification,
    "token_classification": _token_classification,
    "question_answering": _question_answering,
    "multiple_choice": _multiple_choice,
}


def _sentence_embedding(a: Architecture, hidden: str) -> Iterator[Activation]:
    """Yield the pooling and, if present, the `Dense` modules and the normalization; the last row is named `sentence_embedding`."""
    path = "sentence_embedding"
    rows = [Activation(f"{path}.pooled", f"{POOLING}{a.pooling}", (hidden,), SENTENCE, a.hidden_size, _POOLED[a.pooling])]
    for number, dense in enumerate(a.dense):
        rows += _dense(f"{path}.dense.{number}", dense, rows[-1].name)
    if a.normalize:
        rows.append(Activation(path, "unit", (rows[-1].name,), SENTENCE, rows[-1].width, "x / |x|"))
    for row in (*rows[:-1], replace(rows[-1], name=path)):
        yield replace(row, reads_all_tokens=a.pooling != "cls")


def _dense(path: str, dense: Dense, inputs: str) -> Iterator[Activation]:
    linear, width = f"{path}.linear", dense.out_features
    parameters = affine(linear) if dense.bias else {"weight": f"{linear}.weight"}
    yield Activation(linear, "linear", (inputs,), SENTENCE, width, "x Wᵀ + b" if dense.bias else "x Wᵀ", parameters)
    if dense.activation:
        function = f"{path}.activation_function"
        yield Activation(function, dense.activation, (linear,), SENTENCE, width, f"{dense.activation}(x)")


def _loss(name: str, kind: str, of: str, counted: str) -> Activation:
    """Return the loss computed from `of`, a mean over the labelled items named `counted`."""
    what = "negative log-likelihood" if kind.endswith("log_probs") else "cross entropy"
    return Activation(name, kind, (of,), SCALAR, 0, f"mean {what} over labelled {counted}")
