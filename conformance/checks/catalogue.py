"""The checks by name: judgements on a golden, laws on drawn batches, tokenization, and pre-training data.

To add a check:

1. Define it. A law is a `Law` in the module of its topic under `conformance.checks.laws`: a function of subject and example that
   raises `LawBroken` if the law does not hold, and otherwise returns the largest ratio of an error to its limit. A check that
   judges activations is an `ActivationCheck` in `conformance.checks.activation_checks`: a view of the candidate, and a function
   that lists the passes to run (`conformance.checks.passes.Passes`); a new kind of pass gets a module like
   `conformance.checks.backward_passes`. A check of pre-training data is a `DataCheck` called `NAME` in
   `conformance/checks/data/NAME.py`: a function of the examples that yields one sentence for each violated property. A check of a
   whole training loop is a function of a `CheckRequest` in a module of its own, like `conformance.checks.loss_curve`.
2. Add an entry here; that of pre-training data is `data-NAME`, by `_data`.
3. Add a candidate that fails it and, if needed, an unusual and correct one, and run the tests: `BROKEN` and `UNUSUAL` of
   `conformance/tests/lawless.py` with `test_laws.py`, or those of `test_suite.py` for activations; `BROKEN` and `CORRECT` of
   `broken_pipelines.py` and `pipelines.py` with `test_pretraining_data.py`; `WRONG` and `CORRECT` of
   `conformance.benchmarks.training.loops` with `test_training_loops.py`.
4. Paste the table printed by `python -m conformance.checks` into `README.md` beside it.
"""

from collections.abc import Mapping

from conformance.checks.check import Check
from conformance.errors import UnknownNameError
from conformance.names import nearest


def _law(name: str, proves: str, catches: str, entry_point: str, remedy: str) -> Check:
    return Check(name, proves, catches, f"checks.laws.{entry_point}", searches=True, remedy=remedy)


def _data(name: str, proves: str, catches: str, remedy: str) -> Check:
    module = name.removeprefix("data-")
    inputs = "examples that the candidate makes of a corpus in which each pair of neighbouring tokens occurs only once"
    return Check(name, proves, catches, f"checks.data.{module}:{module}", remedy=remedy, inputs=inputs)


CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check(
            "values",
            "every exposed activation is one that a correct BERT could have computed",
            "any mistake, whether or not the suite has a name for it",
            "checks.activation_checks:values",
            described_in="judge.judge",
            every_golden=True,
            remedy="Take the first origin and the mistake named there, and look the mistake up with `bert-conformance explain`.",
        ),
        Check(
            "outputs",
            "the outputs agree with a correct BERT's, judged from the token ids alone: the same output after copying the weights",
            "a mistake in a step that is not exposed; an export or a compiled module that is correct only while its activations "
            "are exposed",
            "checks.activation_checks:outputs",
            every_golden=True,
            remedy="Run the check `values` with more activations exposed; it names the step.",
        ),
        Check(
            "stages",
            "the results of the embedding and of every layer are correct, each judged from the previous one",
            "a mistake anywhere in a layer, located to that layer",
            "checks.activation_checks:stages",
            remedy="Run the check `values` with more activations of that layer exposed; it names the step.",
        ),
        Check(
            "moments",
            "mean and variance after the LayerNorm of the embedding and of every residual agree with theory",
            "a missing norm; a norm over the wrong axis",
            "checks.activation_checks:moments",
            described_in="checks.moments",
            remedy="Normalize each token over its features, with the checkpoint's layer_norm_eps.",
        ),
        Check(
            "gradients",
            "the gradient of every loss with respect to each activation and parameter is that of a correct backward pass",
            "a detached statistic; a parameter that receives no gradient; padding that receives one",
            "checks.activation_checks:gradients",
            described_in="checks.backward_passes",
            remedy="Take the first origin: the step of that gradient computes it incorrectly from the gradients that arrive there.",
        ),
        Check(
            "training-mode",
            "dropout acts at the right places, at its rates, on each element independently; all else is correct under its masks",
            "dropout after the norm, or none on the probabilities; a rate other than the config's; masks that repeat",
            "checks.activation_checks:training_mode",
            described_in="checks.training_passes",
            remedy="Take the first origin: a dropout is missing there, is superfluous, or does not follow the config.",
        ),
        Check(
            "optimizer-step",
            "each step of the training loop updates the parameters as clipping, AdamW and the schedule require",
            "epsilon inside the square root; weight decay on biases, or in the gradient; clipping per tensor",
            "checks.activation_checks:optimizer_step",
            described_in="checks.optimizer_passes",
            remedy="Take the first origin and the mistake named there: a wrong setting, or a wrong term of Adam's equation.",
        ),
        Check(
            "schedule",
            "the learning rate follows the schedule's formula in every step of a whole run",
            "a warm-up that is off by one step; a schedule that is stepped once per epoch",
            "checks.activation_checks:schedule",
            described_in="checks.optimizer_passes",
            remedy="Step the schedule once after each step of the optimizer; `explain rate-other` lists the usual mistakes.",
        ),
        Check(
            "loss-curve",
            "over a hundred steps the loss of the training loop agrees with the oracle's to within rounding",
            "an Adam state that is lost between steps; a learning rate that is off by 1 %; a wrong batch",
            "checks.loss_curve:loss_curve",
            remedy="Run `optimizer-step` and `schedule`, which name most causes; otherwise inspect the loop at the reported step.",
        ),
        Check(
            "learning",
            "a training loop learns: the masked-LM loss falls below the entropy of the tokens' frequencies",
            "labels that belong to other positions; an optimizer that changes no parameter, or increases the loss",
            "checks.learning:learning",
            remedy="Run `gradients` and `optimizer-step`, which find most causes; then inspect how the loop treats its batches.",
        ),
        Check(
            "initialization",
            "training starts from BERT's parameters: biases 0, LayerNorm weights 1, the rest drawn from N(0, initializer_range²)",
            "a framework's default initialization; layers that start as copies of each other; a range other than the config's",
            "checks.activation_checks:initialization",
            described_in="checks.initial_passes",
            remedy="Draw each matrix and table anew with the initializer_range; set biases to 0, LayerNorm weights to 1.",
        ),
        _law(
            "generated-batches",
            "every activation is correct on randomly drawn batches of any length, mask, size and token ids",
            "a result that is wrong at odd lengths, or for one id",
            "generated:generated",
            remedy="Replay the smallest failing batch in the report; the check `values` on it names the step.",
        ),
        _law(
            "padding-length",
            "additional padding at the right does not change the results at real tokens",
            "a head that attends to padding; a mean over all positions",
            "padding:padding_length",
            remedy="Mask padding keys in every attention head, and take means over unmasked positions only.",
        ),
        _law(
            "padding-content",
            "the ids and token types of padding do not change the results at real tokens",
            "a mask that is derived from the ids; no mask at all",
            "padding:padding_content",
            remedy="Derive the mask from attention_mask, never from the ids.",
        ),
        _law(
            "masked-row",
            "a row whose mask is all zeros neither crashes nor changes the results of other rows",
            "NaN that spreads from the softmax of a fully masked row",
            "padding:masked_row",
            remedy="Use the format's lowest number instead of −∞ if a whole row is masked.",
        ),
        _law(
            "batching",
            "batch size, order and splitting change results by no more than rounding",
            "statistics over the batch; a fixed batch size",
            "batching:batching",
            remedy="Compute no statistic over the batch, and do not fix the batch size when the module is built or exported.",
        ),
        _law(
            "batching-bitwise",
            "batch size, order and splitting change no bit; required of candidates that promise it, reported for others",
            "a kernel that is chosen by batch size, in a candidate with `batch_invariant = True`",
            "batching:batching_bitwise",
            remedy="Use batch-invariant kernels, or do not set `batch_invariant`.",
        ),
        _law(
            "mask-omitted",
            "without a mask, every token is attended to",
            "a mask that is required, or is derived from the ids if omitted",
            "inputs:mask_omitted",
            remedy="Treat an omitted attention_mask as all ones.",
        ),
        _law(
            "token-types-omitted",
            "omitted token types are 0",
            "a token type embedding that is omitted with them",
            "inputs:token_types_omitted",
            remedy="Treat omitted token_type_ids as zeros, and add their embedding.",
        ),
        _law(
            "mask-dtype",
            "a mask of dtype bool, uint8, int32 or float32 is refused or has the same meaning",
            "a float mask that is added to the scores",
            "inputs:mask_dtype",
            remedy="Convert the mask (`mask != 0`) before using it, or refuse other dtypes with an error.",
        ),
        _law(
            "repeated",
            "two runs give the same results, bit for bit",
            "a race condition in a kernel; random noise",
            "repetition:repeated",
            remedy="Use deterministic kernels, and draw no random numbers in evaluation mode.",
        ),
        _law(
            "called-again",
            "a call gives the same results after other calls as it does as the first call, bit for bit",
            "a cache that is not cleared; a mask, token types or a length that are kept from the first call",
            "repetition:called_again",
            remedy="Keep no data of one call for the next; compute lengths and masks in each call.",
        ),
        _law(
            "dropout-off",
            "the result does not depend on the random state, and no module is in training mode",
            "a missing call of eval()",
            "repetition:dropout_off",
            remedy="Call eval() before the forward pass, and apply no dropout in evaluation mode.",
        ),
        _law(
            "ids-refused",
            "ids and token types beyond their tables raise an error",
            "ids that are clipped",
            "refusals:ids_refused",
            remedy="Raise an error for ids of vocab_size or more, and token types of type_vocab_size or more.",
        ),
        _law(
            "negative-ids-refused",
            "negative ids and token types raise an error",
            "an index that counts from the end",
            "refusals:negative_ids_refused",
            remedy="Raise an error for negative ids and token types.",
        ),
        _law(
            "length-refused",
            "sequences longer than the position table raise an error",
            "text that is truncated without an error",
            "refusals:length_refused",
            remedy="Raise an error for sequences longer than the position table; truncate only in the tokenizer.",
        ),
        _law(
            "inputs-untouched",
            "a call does not change its inputs",
            "a mask that is inverted in place",
            "surroundings:inputs_untouched",
            remedy="Work on a copy: replace in-place operations on the inputs (`mask.sub_`) by out-of-place ones.",
        ),
        _law(
            "settings-untouched",
            "a call leaves random states, default dtype and device, gradient mode and threads unchanged",
            "set_default_dtype() or manual_seed() in a forward pass",
            "surroundings:settings_untouched",
            remedy="Change global state outside the forward pass, or restore it.",
        ),
        _law(
            "weights-untouched",
            "a call leaves weights, buffers and training flags unchanged, and no gradients behind",
            "running statistics; a module that calls eval() in its forward pass",
            "surroundings:weights_untouched",
            remedy="Change no parameter, buffer or training flag in a forward pass.",
        ),
        _law(
            "registered-tensors",
            "every tensor that the module holds is a parameter or a buffer",
            "a table of positions that is not moved with the module",
            "parameters:registered_tensors",
            remedy="Register it: register_buffer(name, tensor), with persistent=False if it can be recomputed.",
        ),
        _law(
            "state-round-trip",
            "the state dict, saved and loaded with safetensors, gives another instance the same results, bit for bit",
            "weights that are stored a second time, fused or transposed, outside the state dict",
            "parameters:state_round_trip",
            remedy="Store each weight once, and compute fused or transposed copies after loading.",
        ),
        _law(
            "tied-weights",
            "if the module has the word embeddings in two places, both are one tensor",
            "a decoder weight that is a copy, and diverges from the embeddings in training",
            "parameters:tied_weights",
            remedy="Tie them: decoder.weight = word_embeddings.weight, one Parameter.",
        ),
        _law(
            "tokenization",
            "ids and offsets of drawn texts equal those of the `tokenizers` library, for candidates with a tokenizer",
            "accents or CJK characters that are treated differently; offsets that include stripped characters",
            "tokenization:tokenization",
            remedy="Follow BertTokenizer: clean, split CJK characters, lower-case, strip accents, split at punctuation, WordPiece.",
        ),
        _data(
            "data-layout",
            "rows are [CLS] A [SEP] or [CLS] A [SEP] B [SEP], token types and mask agree with that, A and B are text of the corpus",
            "a row that is truncated without its last [SEP]; padding that is not masked",
            remedy="Truncate A and B before adding [CLS] and [SEP], and pad afterwards.",
        ),
        _data(
            "data-labels",
            "labels are the tokens of the corpus at their own positions; tokens without a label are unchanged",
            "labels that are shifted by one; a label at [SEP] or at padding",
            remedy="Copy the ids before replacing any, and set the labels of all tokens that were not chosen to the ignored label.",
        ),
        _data(
            "data-choice",
            "the declared share (15 %) of tokens or of words is chosen independently, and anew in every epoch if declared",
            "whole words that are chosen together; a seed that is set for each row",
            remedy="Draw one random number per token, from a generator that is seeded once.",
        ),
        _data(
            "data-replacement",
            "80 % of the chosen tokens become [MASK], 10 % a random token, 10 % stay unchanged, independently of each other",
            "special tokens as random tokens; too many unchanged tokens, so that the input reveals the label",
            remedy="Draw another random number for each chosen token, and random tokens uniformly from those that are not special.",
        ),
        _data(
            "data-pairs",
            "half of the pairs are two consecutive utterances of a conversation and labelled so, the other half never are",
            "a random utterance that is the next one; pairs across the boundary of two films or conversations",
            remedy="Pair utterances within a conversation, and draw again if the random utterance is the next one.",
        ),
    )
}

PUBLISHED = "published-values"  # not selectable: runs whenever the given checkpoint has published values


def named(name: str) -> Check:
    """Return the check of that name; raise `UnknownNameError` with the nearest names if there is none."""
    if name not in CHECKS:
        raise UnknownNameError(f"no check {name!r}; {nearest(name, CHECKS)}")
    return CHECKS[name]
