"""The terms of the judgement: of errors and their limits, of the evidence for a mistake, and of runs."""

from collections.abc import Mapping

from conformance.glossary.term import Term
from conformance.numerics.thresholds import FALSE_ALARM_TEXT

JUDGEMENT: Mapping[str, Term] = {
    "sigma": Term(
        "the unit of errors, σ: the standard deviation of a correct implementation's rounding error, element by element",
        (
            "It is derived from the floating-point format and the accuracy of library functions; no tolerance is set by hand.",
            "The most that library functions such as exp and erf can add is subtracted from an error before it is expressed in σ.",
            "A correct candidate has an RMS of at most about 2 σ, usually far less; where such functions dominate, about 0 σ.",
        ),
    ),
    "origin": Term(
        "an activation that is wrong for the candidate's own inputs to it: an error begins there, or in unexposed steps before it",
        (
            "The inputs are the nearest earlier activations that the candidate exposes.",
            "Origins are listed in the order of computation.",
        ),
    ),
    "local rms": Term(
        "the error of one step, or of a segment of unexposed steps, given the candidate's own inputs to it",
        (
            "RMS over all judged elements, each in units of its σ, less the most that errors of library functions can contribute.",
            "Its σ is the rounding of this step alone, that of global rms all rounding since the token ids: the two columns "
            "cannot be compared with each other.",
            "Positions that the attention mask excludes (padding) are not judged: a correct candidate may compute anything there.",
            "`median local error` is the median over all judged activations of all batches.",
            "Of two candidates, in `diff`: what the step itself adds to their difference, in the σ of both roundings.",
        ),
    ),
    "max": Term(
        "the largest error of a single element of the step, in units of its σ",
        (
            "It finds errors in few elements, which an RMS over all elements does not show.",
            "As for local rms, the most that errors of library functions can contribute is subtracted first.",
        ),
    ),
    "limit": Term(
        "the largest value that passes, of the local rms or the max in the column before it",
        (
            f"It is derived from a false-alarm probability of {FALSE_ALARM_TEXT} for the whole run and from the number of "
            "independent rows.",
            "Fewer independent rows raise it, since the RMS of few varies more: about 1.6 σ for 80 rows, 3.5 σ for 6.",
            "The probability is shared by all tests of the run: with more candidates, goldens or checks in a run each limit "
            "is slightly higher. Compare errors with the limit of their own run.",
        ),
    ),
    "allowed": Term(
        "of one element: the largest difference from the expected value that passes, in the unit of the tensor",
        (
            "It is printed beside the found and the expected value of one of the wrong elements.",
            "For the check `values`: the difference, divided by how many times the error of its activation exceeds the limit.",
        ),
    ),
    "global rms": Term(
        "the error that has accumulated since the token ids, in units of accumulated rounding, not in those of the local rms",
        (
            "It is not judged. If it is large and the local error is small, the mistake is at an earlier step.",
            "Of two candidates, in `diff`: their difference, in units of the rounding that has accumulated in both.",
        ),
    ),
    "amplitude": Term(
        "the share of the mistake's effect that the error contains: 1 if it is present, 0 if it is absent",
        (
            "It is not given for a mistake with an estimated number or with fitted parameters: they are chosen so that it is 1.",
            "a = <r,d>/<d,d> with the residual r, the effect d of the mistake, and <x,y> = Σ x y / σ².",
        ),
    ),
    "z": Term(
        "the amplitude in units of its own standard deviation under rounding alone",
        (
            "A mistake is reported only if z exceeds the threshold that follows from the run's false-alarm probability.",
            "It is how far the result is from one without the mistake, relative to rounding. It is not the distance of an "
            "estimated number from the expected one in units of its ±: the ± is that of the number where the mistake is "
            "present, and a number such as an epsilon does not change the result in proportion.",
        ),
    ),
    "amplifier": Term(
        "a correct step after an origin, which enlarges the error of earlier steps more than it would random errors",
        ("It is reported as a role of activations that pass; nothing has to be repaired there.",),
    ),
    "attenuator": Term(
        "a correct step after an origin, which reduces the error of earlier steps more than it would random errors",
        ("It is reported as a role of activations that pass; nothing has to be repaired there.",),
    ),
    "candidate": Term(
        "the BERT implementation that is judged: a module, an exported program, a program in any language, or a recorded trace",
        (
            "It is given the weights of a network and batches of token ids, and returns activations by name.",
            "`bert-conformance list` lists the registered ones; `run --help` says how any other is named.",
        ),
    ),
    "oracle": Term(
        "the implementation of BERT's equations in float64 with which candidates are compared",
        (
            "It is written in NumPy from the papers' equations and shares no code with any candidate.",
            "`explain ACTIVATION` prints an equation; `trace golden:tiny` prints what the oracle computes at each step.",
        ),
    ),
    "checkpoint": Term(
        "the weights and the architecture of a network",
        (
            "`--checkpoint DIR` reads a folder as written by Hugging Face's save_pretrained: config.json and model.safetensors.",
            "A candidate conforms to the architecture that the checkpoint declares, for instance with hidden_act gelu_new.",
        ),
    ),
    "golden": Term(
        "a network with fixed batches of inputs, on which candidates are run",
        (
            "Its weights are generated from a seed, or those of a trained network; digests of weights and batches are verified.",
            "`bert-conformance list` lists the goldens; `tiny` takes seconds. `golden make` makes one of a checkpoint.",
        ),
    ),
    "batch": Term(
        "token ids, token types and attention mask of one or several texts: the input of one call",
        ("Each is an integer array of shape (B, S): B rows, each with S positions. Positions that the mask excludes are padding.",),
    ),
    "activation": Term(
        "a tensor that the network computes between the token ids and its outputs, such as encoder.layer.3.output.LayerNorm",
        (
            "Names are Hugging Face's module paths; in `explain`, N stands for the number of a layer, from 0.",
            "It does not mean a function such as GELU, which is called hidden_act, as in the config.",
        ),
    ),
    "step": Term(
        "the computation of one activation from its inputs by one equation",
        ("y = f(x; parameters), where x are the activations listed as `computed from` by `explain ACTIVATION`.",),
    ),
    "unexposed step": Term(
        "a step whose result the candidate does not expose, that is, does not return",
        (
            "It is judged together with the next exposed step: y = f2(f1(x)) with x the nearest exposed inputs.",
            "Without an exposed step after it, it is not judged.",
            "Its rounding errors are propagated to y, so that mistakes in it are still found, and named.",
        ),
    ),
    "segment": Term(
        "the steps that lead to an exposed activation from the nearest exposed ones before it",
        ("One step, preceded by its unexposed steps, if there are any. Local errors and mistakes are those of segments.",),
    ),
    "judged": Term(
        "compared with the oracle: `85 of 97 activations judged` counts the activations that the candidate exposes",
        (
            "Coverage is this share. The others are not observed: an unexposed step is judged together with the next exposed one.",
            "Steps after the last exposed one are not judged at all: a pass says nothing about them.",
            "Elements at padding are not judged, since a correct candidate may compute anything there.",
            "`--require-activations PATTERN` makes activations mandatory.",
        ),
    ),
    "conforms": Term(
        "no judged activation differs from the oracle's by more than rounding explains",
        (
            "Of each: local rms and max are within their limits, and no mistake of the catalogue has a z beyond its threshold.",
            "It is a statement about the checks that ran, on their inputs. A pass lists which mistakes it excludes.",
        ),
    ),
    "declared": Term(
        "requested of a candidate that supports it: `ran 2 of 3, 1 skipped` counts checks, each on one golden in one dtype",
        (
            "ran counts those that came to a judgement: not errors, nor checks for which something is not installed.",
            "What a candidate does not support is not declared, and skipped.",
            "A declared property of a network is one that its config states.",
        ),
    ),
    "exact": Term(
        "of an activation: computed without rounding, so that any difference from the oracle fails",
        ("Its error must be 0: it is copied from a table, from other activations, or multiplied by 0 or 1, as by a mask.",),
    ),
    "residual": Term(
        "the local error as an array: what the candidate computed, minus what the oracle computes from the candidate's own inputs",
        (
            "r = a - f(x) for the candidate's result a, its own inputs x, and the oracle's step or segment f.",
            "In names such as residual-missing it means the network's residual connection, x + g(x).",
        ),
    ),
    "mistake": Term(
        "something that a candidate computes wrongly; the catalogue names those that are known, each with its equation",
        (
            "It is named if the oracle with that mistake reproduces the candidate's result to within rounding.",
            "An unidentified error is one that no mistake of the catalogue explains; the report describes it.",
            "`no mistake of the catalogue explains it, but the equation holds with …` is such a description too: of the numbers "
            "with which the step's equation gives the candidate's result. It has a label, such as `parameters-other`, by which "
            "known failures refer to it, but says nothing of what the code does to get these numbers.",
            "An error is a numerical difference, whose cause is rounding or a mistake; `error` is also an outcome of checks.",
            "`bert-conformance explain` lists the catalogue. In Python and in results files a mistake is a `fault`.",
        ),
    ),
    "matched filter": Term(
        "the test for one mistake: the projection of the residual on the change that the mistake would cause",
        (
            "z = <r,d> / sd(<n,d>) with the residual r, the change d, rounding errors n, and <x,y> = Σ x y / σ².",
            "The most that errors of library functions can contribute is first subtracted from |<r,d>|.",
        ),
    ),
    "expected z": Term(
        "the z that a mistake would have if the candidate made it",
        (
            "E[z] = (<d,d> - b) / sd(<n,d>), with b the most that errors of library functions can contribute.",
            "0 means that they, or rounding, can hide the mistake completely; a mistake that changes no result has none.",
        ),
    ),
    "separable": Term(
        "of a mistake: it would be detected at a step if the candidate made it there, since its expected z is at least 12",
        (
            "The threshold of z is below 7.5 in any run; the remaining 4.5 standard deviations make a miss as unlikely as a "
            "false alarm (3e-6).",
            "A pass excludes the mistakes that are separable at every step that they change, and lists the others.",
        ),
    ),
    "estimate": Term(
        "a wrong number, such as an epsilon, computed from the residual, with its standard deviation",
        (
            "Weighted least squares: the v that minimises Σ (a - f(x; v))² / σ².",
            "± is one standard deviation. The z beside it is that of the matched filter, not a distance in deviations.",
        ),
    ),
    "confirmed": Term(
        "of a number such as epsilon: a pass shows that the candidate uses it at every step, to within the deviation that is given",
        (
            "The deviation is the smallest that would have been separable, with an expected z of 12, at the step where it is least "
            "visible, which is named; elsewhere smaller ones would have been. Of 300,000 this large, "
            "one is missed, as of separable mistakes.",
            "A number is not confirmed if even the usual mistake would not have been separable at some step.",
        ),
    ),
    "indistinguishable": Term(
        "of two mistakes: on these inputs they change the exposed activations in the same way, to within rounding",
        ("They are reported together. Another batch is generated to separate them, unless they agree on all inputs.",),
    ),
    "evidence": Term(
        "the logarithm of a likelihood ratio, in nats: how much better a set of mistakes explains the outputs than a correct BERT",
        ("ln p(outputs | mistakes) - ln p(outputs | no mistake), less the cost of estimated numbers; used by `diagnose`.",),
    ),
    "false alarm": Term(
        "a failure of a correct candidate",
        (
            f"Its probability is at most {FALSE_ALARM_TEXT} for a whole run, under the model of rounding. Each of n tests has the "
            f"share 1 - (1 - {FALSE_ALARM_TEXT})^(1/n).",
        ),
    ),
    "arithmetic": Term(
        "how a step rounds: the format of stored results, the format of sums, and which intermediate results are rounded",
        (
            "Several are legal in each format. The likeliest is selected for all steps of a kind together.",
            "`bert-conformance explain` lists them, as reports name them.",
        ),
    ),
    "format": Term(
        "a floating-point format (dtype): float64, float32, bfloat16 or float16",
        ("Rounding changes x to x (1 + δ), |δ| <= u: u = 2^-53 in float64, 2^-24 in float32, 2^-8 in bfloat16, 2^-11 in float16.",),
    ),
    "screen": Term(
        "the depth of a run that judges every step by its RMS and largest error only: run --depth screen",
        (
            "It finds the wrong steps and names no mistakes. The default depth, full, adds filters, names and global errors.",
            "In half-precision formats it misses mistakes that only a filter shows.",
        ),
    ),
    "check": Term(
        "one thing that is required of a candidate, such as `values` or `padding-length`",
        ("`run --check NAME` selects checks; `bert-conformance explain` lists them. A law is a check that compares two calls.",),
    ),
    "counterexample": Term(
        "the smallest batch found for which a check fails",
        ("Hypothesis draws batches and, after a failure, shrinks them; the batch is saved in failures/ for `replay`.",),
    ),
    "known failure": Term(
        "a failure that a file declares with a reason, and that therefore does not fail the run",
        (
            "`run --known-failures FILE`; `run --help` shows the format. The outcome is xfail.",
            "If the check passes nonetheless, the outcome is xpass, which fails: the entry is out of date.",
        ),
    ),
    "registration": Term(
        "the description of how a candidate is built and called: its parameters and activations by Hugging Face's names",
        (
            "`bert-conformance map MODULE:FACTORY` proposes it and writes it to a file, the adaptor.",
            "An error in it is reported as an error of the registration, not as a mistake of the BERT.",
        ),
    ),
    "worker": Term(
        "the process in which a candidate is imported and run, apart from the process that judges it",
        ("If it ends, the check is a crash and the next check starts a new one. `run --in-process` uses none.",),
    ),
    "pooling": Term(
        "how a sentence embedding is computed from the last hidden state: cls, mean, max, ...",
        ("For example mean: e = Σ_t m_t h_t / Σ_t m_t, with hidden states h and attention mask m.",),
    ),
}
