"""The checks by name: judgements on a golden, laws on drawn batches, tokenization, and pre-training data.

To add a law:

1. Define it in the module of its topic under `conformance.checks.laws`: a `Law` with a function of subject and example that raises
   `LawBroken` if the law does not hold, and otherwise returns the largest ratio of an error to its limit.
2. Add an entry here.
3. Add a candidate that breaks the law to `BROKEN` in `conformance/tests/lawless.py`, and a correct one to `UNUSUAL` if needed.
4. Paste the table printed by `python -m conformance.checks` into the README.
"""

from collections.abc import Mapping

from conformance.checks.check import Check
from conformance.names import unknown


def _law(name: str, proves: str, catches: str, entry_point: str, remedy: str) -> Check:
    return Check(name, proves, catches, f"checks.laws.{entry_point}", searches=True, remedy=remedy)


def _data(name: str, proves: str, catches: str, remedy: str) -> Check:
    module = name.removeprefix("data-")
    inputs = "examples that the candidate makes of a corpus in which every two neighbouring tokens are found at one place"
    return Check(name, proves, catches, f"checks.data.{module}:{module}", remedy=remedy, inputs=inputs)


CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check(
            "values",
            "every activation that is exposed is what a correct BERT could have made",
            "any of the mistakes that have names, and those that have none",
            "checks.judged:values",
            described_in="judge.judge",
            every_golden=True,
            remedy="Take the first origin and the fault that is named there, and look that up with `bert-conformance explain`.",
        ),
        Check(
            "outputs",
            "the outputs alone, judged from the token ids: the same output after copying the weights",
            "a mistake in what is not exposed; an export that is right only while it is looked into",
            "checks.judged:outputs",
            every_golden=True,
            remedy="Run the check `values`, with more activations exposed: it names the step.",
        ),
        Check(
            "stages",
            "the values after the embedding and after every layer, each judged from the one before",
            "a mistake anywhere in a layer, placed by layer",
            "checks.judged:stages",
            remedy="Run the check `values`, with more activations of that layer exposed: it names the step.",
        ),
        Check(
            "moments",
            "mean and variance of the embedding and of every residual, as LayerNorm's theory has them",
            "a norm left out, or over the wrong axis",
            "checks.judged:moments",
            described_in="checks.moments",
            remedy="Normalise each token over its features, with the checkpoint's layer_norm_eps.",
        ),
        Check(
            "gradients",
            "the gradient of every loss with respect to each activation and parameter is that of a correct backward pass",
            "a statistic that is detached; a parameter that does not learn; padding that does",
            "checks.judged:gradients",
            described_in="checks.backward",
            remedy="Take the first origin: the step to which that gradient belongs computes it wrongly from what arrives there.",
        ),
        Check(
            "training-mode",
            "dropouts stand where they should, at their rates, each element by itself; all else is right with what they keep",
            "dropout after the norm, or none on the probabilities; a rate that is not the config's; masks that repeat",
            "checks.judged:training_mode",
            described_in="checks.training",
            remedy="Take the first origin: there a dropout is missing, or one too many, or drops otherwise than the config says.",
        ),
        Check(
            "optimizer-step",
            "each step of the training loop takes the parameters where clipping, AdamW and the schedule take them",
            "epsilon inside the root; decay on biases, or in the gradient; clipping tensor by tensor",
            "checks.judged:optimizer_step",
            described_in="checks.optimizer",
            remedy="Take the first origin and the fault that is named there: it is a setting, or a term of Adam's equation.",
        ),
        Check(
            "schedule",
            "the learning rate is that of the schedule's formula in every step of a whole run",
            "a warm-up that is off by one step; a schedule that is stepped by epoch",
            "checks.judged:schedule",
            described_in="checks.optimizer",
            remedy="Step the schedule once after each step of the optimizer; `explain rate-other` has the usual ways to fail.",
        ),
        Check(
            "loss-curve",
            "over a hundred steps the loss of the training loop stays as close to the oracle's as rounding explains",
            "a state of Adam that is lost on the way; a rate that is 1 % off; a batch that is another",
            "checks.loss_curve:loss_curve",
            remedy="Run `optimizer-step` and `schedule`, which name most causes; else see what the loop does at the step given.",
        ),
        Check(
            "learning",
            "a training loop learns: the masked-LM loss falls below the entropy of the tokens' frequencies",
            "labels that are not those of their places; an optimizer that moves nothing, or uphill",
            "checks.learning:learning",
            remedy="Run `gradients` and `optimizer-step`, which find most causes; then look at what the loop does to its batches.",
        ),
        Check(
            "initialization",
            "training starts from BERT's parameters: biases 0, LayerNorm weights 1, the rest drawn from N(0, initializer_range²)",
            "a framework's default initialization; layers that start as copies; a range that is not the config's",
            "checks.judged:initialization",
            described_in="checks.initialization",
            remedy="Draw each matrix and table anew, with the config's initializer_range; set biases to 0, LayerNorm weights to 1.",
        ),
        _law(
            "generated-batches",
            "every activation on batches that are drawn: any length, mask, size, token",
            "a result that is wrong at odd lengths, or for one id",
            "generated:generated",
            remedy="Replay the smallest batch that the report gives; the check `values` on it names the step.",
        ),
        _law(
            "padding-length",
            "more padding at the right changes nothing at real positions",
            "a head that attends to padding; a mean over all positions",
            "padding:padding_length",
            remedy="Hide masked keys in every attention head, and take means over unmasked positions only.",
        ),
        _law(
            "padding-content",
            "what padding holds changes nothing at real positions",
            "a mask made of the ids, or not made at all",
            "padding:padding_content",
            remedy="Take the mask from attention_mask, never from the ids.",
        ),
        _law(
            "masked-row",
            "a row whose mask is all zeros neither crashes nor disturbs its neighbours",
            "NaN that spreads from a softmax over nothing",
            "padding:masked_row",
            remedy="Use the format's lowest number in place of −∞ where a whole row is masked.",
        ),
        _law(
            "batching",
            "batch size, order and splitting change nothing, but for rounding",
            "statistics taken over the batch; a batch size that is baked in",
            "batching:batching",
            remedy="Take no statistic over the batch, and no size from the batch that the module was built or exported with.",
        ),
        _law(
            "batching-bitwise",
            "batch size, order and splitting do not change a bit; reported of all, asked of those that promise it",
            "a kernel that is chosen by batch size, in a candidate with `batch_invariant = True`",
            "batching:batching_bitwise",
            remedy="Use batch-invariant kernels, or do not promise it (`batch_invariant`).",
        ),
        _law(
            "mask-omitted",
            "without a mask everything is attended to",
            "a mask that is needed, or made of the ids where it is left out",
            "inputs:mask_omitted",
            remedy="Take an omitted attention_mask as all ones.",
        ),
        _law(
            "token-types-omitted",
            "without token types they are 0",
            "an embedding that is left out with them",
            "inputs:token_types_omitted",
            remedy="Take omitted token_type_ids as zeros, and add their embedding.",
        ),
        _law(
            "mask-dtype",
            "a mask of bool, uint8, int32 or float32 is refused, or means the same",
            "a float mask that is added to the scores",
            "inputs:mask_dtype",
            remedy="Convert the mask (`mask != 0`) before it is used, or refuse other dtypes with an error.",
        ),
        _law(
            "repeated",
            "two runs are the same, bit for bit",
            "a kernel that races; noise",
            "repetition:repeated",
            remedy="Choose deterministic kernels, and draw no random number in evaluation.",
        ),
        _law(
            "called-again",
            "a call after others gives what it gives as the first call, bit for bit",
            "a cache that is not let go; a mask, token types or a length that are kept from the first call",
            "repetition:called_again",
            remedy="Keep nothing of one call for the next; compute lengths and masks anew.",
        ),
        _law(
            "dropout-off",
            "the result does not depend on the random state, and no module is in training mode",
            "eval() that was not called",
            "repetition:dropout_off",
            remedy="Call eval() before the forward pass, and drop nothing in evaluation.",
        ),
        _law(
            "ids-refused",
            "ids and token types beyond their tables raise",
            "ids that are clipped",
            "refusals:ids_refused",
            remedy="Raise for ids of vocab_size or more, and token types of type_vocab_size or more.",
        ),
        _law(
            "negative-ids-refused",
            "negative ids and token types raise",
            "an index that counts from the end",
            "refusals:negative_ids_refused",
            remedy="Raise for negative ids and token types.",
        ),
        _law(
            "length-refused",
            "sequences beyond the last position raise",
            "text that is cut short without an error",
            "refusals:length_refused",
            remedy="Raise for sequences longer than the table of positions; cut them in the tokenizer if at all.",
        ),
        _law(
            "inputs-untouched",
            "the inputs are as they were after the call",
            "a mask that is inverted in place",
            "surroundings:inputs_untouched",
            remedy="Work on a copy: replace in-place operations on the inputs (`mask.sub_`) by others.",
        ),
        _law(
            "settings-untouched",
            "random states, default dtype and device, gradient mode and threads are left as found",
            "set_default_dtype() or manual_seed() in a forward pass",
            "surroundings:settings_untouched",
            remedy="Set global state outside of the forward pass, or restore it.",
        ),
        _law(
            "weights-untouched",
            "weights, buffers and training flags are left as found, without gradients",
            "running statistics; a module that calls eval() on the way",
            "surroundings:weights_untouched",
            remedy="Change no parameter, buffer or training flag in a forward pass.",
        ),
        _law(
            "registered-tensors",
            "the module holds no tensor that is neither parameter nor buffer",
            "a table of positions that stays behind when the module moves",
            "parameters:registered_tensors",
            remedy="Register it: register_buffer(name, tensor), with persistent=False where it can be computed again.",
        ),
        _law(
            "state-round-trip",
            "the state dict, through safetensors, makes another one of the kind the same, bit for bit",
            "weights that are kept a second time, fused or transposed, outside of the state dict",
            "parameters:state_round_trip",
            remedy="Keep each weight once, and compute fused or transposed copies after loading.",
        ),
        _law(
            "tied-weights",
            "where the word embeddings stand twice they are one tensor",
            "a decoder that is a copy, and parts from the embeddings in training",
            "parameters:tied_weights",
            remedy="Tie them: decoder.weight = word_embeddings.weight, one Parameter.",
        ),
        _law(
            "tokenization",
            "ids and offsets of drawn texts are those of the `tokenizers` library, for candidates that bring a tokenizer",
            "accents or CJK characters that are treated otherwise; offsets that count what was stripped",
            "tokenization:tokenization",
            remedy="Follow BertTokenizer: clean, split CJK characters, lower-case, strip accents, split at punctuation, WordPiece.",
        ),
        _data(
            "data-layout",
            "rows are [CLS] A [SEP] or [CLS] A [SEP] B [SEP], token types and mask agree with that, A and B are text of the corpus",
            "a row that is cut without its last [SEP]; padding that the mask shows",
            remedy="Cut A and B before [CLS] and [SEP] are put around them, and pad after that.",
        ),
        _data(
            "data-labels",
            "labels are the tokens of the corpus at their own positions; what has no label is not changed",
            "labels that are shifted by one; a label at [SEP] or at padding",
            remedy="Copy the ids before any is replaced, and set the labels of all that was not chosen to the ignored one.",
        ),
        _data(
            "data-choice",
            "15 % of the tokens are chosen, each by itself, and anew in every epoch where that is declared",
            "words that are chosen as a whole; a seed that is set for each row",
            remedy="Draw one random number a token, from a generator that is seeded once.",
        ),
        _data(
            "data-replacement",
            "80 % of the chosen tokens are shown as [MASK], 10 % as a random token, 10 % as they are, each by itself",
            "random tokens that are special ones; tokens that are kept too often, so that the input shows the label",
            remedy="Draw another number for each chosen token, and random tokens uniformly from those that are not special.",
        ),
        _data(
            "data-pairs",
            "half of the pairs are two consecutive utterances of a conversation and labelled so, the other half never are",
            "a random utterance that is the next one; pairs across the border of two films or conversations",
            remedy="Pair utterances within a conversation, and draw again where the random one is the next.",
        ),
    )
}

PUBLISHED = "published-values"  # not selectable: runs whenever the given checkpoint has published values


def named(name: str) -> Check:
    """Return the check of that name; raise `UnknownNameError` with the nearest names if there is none."""
    if name not in CHECKS:
        raise unknown("check", name, CHECKS)
    return CHECKS[name]
