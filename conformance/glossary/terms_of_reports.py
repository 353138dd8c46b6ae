"""The words of reports about places, numbers, inputs, files and what is skipped."""

from collections.abc import Mapping

from conformance.glossary.term import Term

REPORTS: Mapping[str, Term] = {
    "layer": Term(
        "one of the network's `num_hidden_layers` equal parts; layers count from 0, so that layer 0 is the first",
        (
            "`encoder.layer.3` is the fourth layer. `every layer` means that the mistake was found at all of them.",
            "Heads, rows, positions and features count from 0, too.",
        ),
    ),
    "layer order": Term(
        "`layers 0 and 1 are run in the order 1, 0`: the activations of layer 0 arrived after the output of layer 1",
        (
            "A candidate yields activations in the order of computation; hooks do. A layer that arrives after the output of a "
            "later one is run after it, or an adaptor yields it too late.",
            "Steps of these layers, and those that read the output of the last of them, are not judged until the order is right.",
            "Usual causes: blocks that were exchanged or reversed in a list, or an order of names such as 0, 1, 10, 11, 2.",
        ),
    ),
    "returned tensor": Term(
        "what a module returns to its caller, which is compared exactly with the output that a hook captures",
        (
            "`the module returns another tensor than its last layer computes`: every layer may be right, and the result is an "
            "earlier layer's, cut or scaled.",
            "`call` of an adaptor returns the outputs by name, as `map` writes it. Without that, the module's own result is "
            "compared with the last hidden state, if it contains a tensor of that width; any other result is not looked at.",
            "At padding the two may differ.",
        ),
    ),
    "evaluation only": Term(
        "an argument of TorchImplementation: the module is not judged in training mode, and `training-mode` is skipped",
        (
            "`map` writes `evaluation_only=True` if the constructor takes no dropout rates: a module without dropout, or with "
            "rates of its own, does not compute what the checkpoint's config says in training mode.",
            "To have it judged, give the constructor arguments such as `hidden_dropout_prob` and "
            "`attention_probs_dropout_prob`, and run `map` again.",
        ),
    ),
    "examples": Term(
        "the batches that a check draws to look for one on which it does not hold",
        (
            "`run --examples N` sets their number for each such check; without it, the check's own number is drawn.",
            "The smallest failing one is the counterexample; `bert-conformance replay` runs it again.",
        ),
    ),
    "head": Term(
        "one of the `num_attention_heads` parts of an attention, each with its own queries, keys and values; heads count from 0",
        (
            "Head h has the features h·d to h·d + d - 1 of query, key, value and context, with d = hidden_size / "
            "num_attention_heads.",
        ),
    ),
    "position": Term(
        "the place of a token in its row, from 0: position 0 is [CLS]",
        ("Scores and probabilities have two: of the query, the token that attends, and of the key, which is attended to.",),
    ),
    "feature": Term(
        "an index along the last axis of an activation, from 0: one of its hidden_size numbers for each token",
        ("A mistake at one feature alone points to one row of a weight, one element of a bias or one gain of a norm.",),
    ),
    "row": Term(
        "one sequence of a batch, from 0; of a matrix: an index along its first axis",
        ("A batch of shape (B, S) has B rows. A query's row of probabilities has one element for each key.",),
    ),
    "axis": Term(
        "a direction of an activation's array: row, position, head, query, key, feature",
        (
            "Indices in brackets are in the order of the axes: encoder.layer.0.attention.self.probs[0, 2, 5, 1] is row 0, "
            "head 2, query 5, key 1. Each counts from 0.",
            "`error along it` shows where along the axis the error lies, and `beyond the limit` at how many slices it is too "
            "large.",
        ),
    ),
    "padding": Term(
        "positions that the attention mask excludes, which fill a row up to the length of its batch",
        (
            "Results at these positions are not judged, since a correct candidate may compute anything there; attention to them "
            "must be zero.",
            "For a row's length without padding, add its elements of attention_mask.",
        ),
    ),
    "masked keys": Term(
        "the keys at padding, to which no query may attend: their probabilities are exactly 0",
        ("`weight of masked keys 0` in a pass: a probability that differs from 0 by the given number would have been detected.",),
    ),
    "padded": Term(
        "the name of a golden's batch whose rows have padding; reports give the batch in brackets: `ACTIVATION [padded]`",
        (
            "`[padded, classifier.loss]`, of a gradient: on this batch, of this loss.",
            "`explain GOLDEN` lists the batches of a golden.",
        ),
    ),
    "unidentified error": Term(
        "an error that no mistake of the catalogue explains; the report says where it acts, and what the result is instead",
        (
            "Start at its place: the heads, positions or features in which it is confined, and the unexposed steps that it names.",
            "Expose more activations, so that fewer steps come into question.",
        ),
    ),
    "significant bits": Term(
        "the precision that would leave an error of this size: float32 has 24, float16 11, bfloat16 8",
        (
            "Rounding x to b significant bits changes it by at most 2^-b |x|.",
            "It is given for an error without a pattern. Near 24, 11 or 8 bits suspect a format; otherwise it only describes "
            "how large the error is, and an equation may be wrong.",
        ),
    ),
    "ULP": Term(
        "unit in the last place: the distance between neighbouring numbers of a format: in float32, 2^-23 for numbers from 1 to 2",
        (
            "Errors of library functions are given in it; a correctly rounded result is off by at most 0.5.",
            "A law such as `repeated`, which requires the same bits, allows 0.",
        ),
    ),
    "only copy": Term(
        "of unexposed steps: their result is their input, as that of dropout in evaluation mode; no mistake of rounding is there",
        ("They are counted apart: `2 steps are not exposed (3 more only copy)`.",),
    ),
    "times what rounding explains": Term(
        "how far a number exceeds its limit: 1 is the limit itself",
        (
            "For the check `values`: the RMS or the largest error in σ, divided by its limit.",
            "For laws: the difference of the two results, divided by the largest that two correct calls may have.",
            "Only above 1 is it a failure. Mistakes are listed by it, the largest first.",
        ),
    ),
    "variation": Term(
        "what a law changed between the two calls that it compares, such as padding tokens that are appended",
        ("The report states it after the smallest failing batch. `explain CHECK` describes the variation of each law.",),
    ),
    "supported": Term(
        "what a candidate can be run on: its `supported` (of an object: `supports`) returns None, or why not",
        (
            "A case that is not supported is a skip, with the reason, and is not counted as declared.",
            "`map` writes `supported` for the settings that a module cannot be given, such as hidden_act: a golden with "
            "another value is skipped.",
            "Do not use it to hide a failure: declare that as a known failure.",
        ),
    ),
    "outcome": Term(
        "what came of a check: pass, fail, skip, error, crash, timeout, xfail, xpass; of an activation also not_observed",
        (
            "`explain OUTCOME` says what each means and what to do. fail, error, crash, timeout and xpass fail the run (exit "
            "code 1).",
        ),
    ),
    "results file": Term(
        "results.jsonl in the folder of a run (--out): one JSON object a line, which `report`, `diff` and `replay` read",
        (
            "`run --schema` prints the schema. The first line, the header, has its version; the last, the footer, the counts. "
            "Without a footer the file is incomplete.",
            "Stable: names of fields, outcomes, checks, goldens, activations and mistakes.",
            "Not stable: sentences, evidence and figures. Compare names and outcomes, not texts.",
            "A release that changes the schema gives it another version, and refuses files of the earlier one.",
        ),
    ),
    "GELU": Term(
        "the usual activation function of BERT: gelu(x) = x Φ(x) = x (1 + erf(x/√2)) / 2, Φ the normal distribution function",
        (
            "With hidden_act gelu_new or gelu_pytorch_tanh: x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2. The two differ by up "
            "to 5e-4.",
            "One of them in place of the other is the mistake gelu-variant: `explain gelu-variant`.",
        ),
    ),
    "replay": Term(
        "to run a saved failure again: `bert-conformance replay failures/NAME.safetensors`",
        (
            "The file holds the batch, and which candidate, golden and check it failed. `explain CHECK` says what the check "
            "requires.",
        ),
    ),
    "baseline": Term(
        "the results file of an earlier run, with which `bert-conformance diff BASELINE results.jsonl` compares a later one",
        ("A later failure that the baseline has as well is not worse: the exit code is 0.",),
    ),
}
