"""The reference of each command, which `COMMAND --help` prints after the options."""

from collections.abc import Mapping

from conformance.cli.forms import shown

REFERENCE: Mapping[str, str] = {
    "map": """
MODULE:FACTORY is package.module:object or FILE.py:object, imported here; the object is a class of
torch.nn.Module, a function that builds one, or a module that is built (with --checkpoint, whose sizes
are its own).

The module is built with sizes that are all different, filled with random parameters and run once.
For each step of BERT the parameters are found with which the step gives a tensor that the module
computed, to within rounding, in whatever layout. Evidence is `by value`, `by shape` where one tensor
alone has the shape, `by name` where neither decides. FACTORY's arguments are known by the usual names
of sizes (vocab_size, d_model, n_layers, heads, ...), or by those of its configuration class.

Exit code 0: the adaptor can be run as it is; 1: something is open without which it cannot.
""",
    "new": """
DIR is a new folder, the package's name. With --map its registration is what `map` proposes; without,
a module to replace. Nothing is overwritten.
""",
    "run": """
Without arguments every registered implementation is run on every golden, in float32: the check
`values`.

Candidates: a registered name; package.module:object, from the folder in which it lies or installed;
or an exported program with the checkpoint that it was made from, as in

    bert-conformance run -i model.onnx --checkpoint DIR --text "I love cats!"

TorchScript archives (.pt), programs of torch.export (.pt2) and ONNX models (.onnx, extra `onnx`)
need no source: interior activations are found in the graph, by the checkpoint's parameters (by
name, or by value in a frozen archive), and made outputs of a copy. The file itself is judged too,
by its outputs, since a runtime may fuse other operations where it is looked into. Loading a
TorchScript archive runs its code; of a .pt2 file tensors alone are unpickled. Where the names of
the inputs do not say which is which, write conformance.Archive(FILE, inputs=(...)).

A program in any language, and activations that were recorded elsewhere, are candidates too:

    bert-conformance run -i 'cmd:node my_bert.mjs' --golden tiny
    bert-conformance run -i trace.safetensors

`explain cmd` has the protocol, and where clients in Python and JavaScript lie that can be copied;
`explain trace` has the form of the file, in a snippet that writes one without this package. A trace
is judged on the weights, inputs, dtype and device that it says it was recorded on.

Inputs: the goldens' own; with --checkpoint the texts, or a JSON file {"input_ids": [[...]],
"attention_mask": ...}, or several such by name; without either a generated batch. --golden takes a
name, or a folder that `golden make` wrote.

Searches: Hypothesis draws batches of every length, mask and token, maximises the error in sigma,
and shrinks what fails. --examples says how many, --seed from what. A failure leaves in `failures/`
of --out: the batch with its activations, which `replay` runs again, a script that shows it without
the suite, and a patch that keeps it in a test.

Workers: each candidate is imported and run in a process of its own, without a network where the
system allows that (--network: with it), and is judged in this one. Laws (the checks that search,
but for generated-batches) look into the candidate's module, and run in the worker. --timeout
SECONDS is how long a candidate may take in one check, --memory SIZE (8GiB) how much address space,
beyond that of an idle worker. What it writes goes to standard error, its first MiB. --in-process
runs candidates here, for a debugger. A worker that ends is a crash of the candidate, and the next
check has a new one.

A run that was cut short (killed, interrupted, a full disk) is resumed by the same command with
--resume: what is in the results file stays, the rest is run. A run of other candidates, goldens,
versions or options is not resumed. Two runs at a time into one --out are refused.

Devices: `--device cuda`, or any other of torch's. Matrix units may truncate sums instead of
rounding them: half formats are multiplied in them, and float32 where a kernel splits it in TF32; a
step that fits is reported as `float32 in matrix units`. TF32 by itself is reduced precision. A
look-up outside of a table breaks an accelerator for the whole worker; the rest of the run goes on
in another one.

Known failures (--known-failures FILE, or an attribute `known_failures` of the implementation), in
TOML:

    [[known-failure]]
    check = "*"            # * and ? as in a shell; also golden, implementation, device, dtype
    golden = "tiny"
    reason = "epsilon is 1e-5 until 2.0"
    issue = "#17"
    activation = "*.output.LayerNorm"    # optional: it fails there, and nowhere else
    fault = "epsilon"                    # optional, with an activation: the fault that is found there

An entry that passes, or that matches nothing, is a failure. A name that does not exist is an error.
A broken harness is never excused.

Exit codes: 0 conforms, 1 does not (or nothing was judged), 2 usage, 3 the harness, a fixture or the
machine is broken, 130 interrupted.
""",
    "report": """
The form is that of the suffix: .html, .md, .txt, .xml (JUnit) or .json. Of several files the report
says which shards are missing and what contradicts itself. It exits as the runs did, and with 1
where something is missing or contradictory.
""",
    "diff": """
Of two implementations, traces or goldens: where the difference begins, and each side's mistakes. It
exits with 1 where one begins.

Of two results files: what is worse, better, new or gone. An activation that passes in both is
reported where its error changed by more than chance. It exits with 1 where something is worse or
gone, a mistake is new, nothing could be compared, or the later run is not whole.
""",
    "trace": """
Tokens, then each activation with its shape, statistics and equation; of two, side by side with
their differences. The page (-o FILE.html) draws the modules and the attention of every head, and
says what a masked-LM head predicts for each [MASK]. Texts are read by all-MiniLM-L6-v2, or by the
tokenizer of --checkpoint. `golden:NAME` traces the oracle.
""",
    "diagnose": f"""
FILE has one or more outputs: last_hidden_state, pooler_output, embedding, logits, or any activation.
JSON may have the inputs as well (`text` or `input_ids`, ...). An output without a name, or with
that of a variable, is what its axes say, or --output. null and "..." stand for what is not known:
of a table that was printed with an ellipsis the edges are judged, where the inputs and the
checkpoint say they are. The rounding of printed numbers is part of sigma, and the pooling of an
embedding is part of the model. Explanations of one, two and three faults are ranked by evidence.
Of embeddings of texts, a text that was cut too early and a prefix that was left out are among them.
--time-limit ends the search with the best explanation that was found, and says what was not tried.

Forms of FILE, with an example each:

{shown()}
""",
    "similarity": """
Each text is embedded by A and by B. All pairs of texts are ranked by cosine similarity; a pair changes
rank where it changes order with another pair. For each pair that does, the report says whether
rounding explains it: how far rounding, of every step since the token ids and of printed numbers, may
move each cosine is derived from the checkpoint. With two formats (--dtype float32 --dtype bfloat16) the
weights of each are rounded to its own. N texts take N² sweeps back through the network on one text.
There is no --golden: a golden holds token ids, and similarity ranks texts.

Exit code 0: rounding explains every change of order, or there is none; 1: it does not.
""",
    "cache": """
The accumulated sigma of a network on a batch depends on no candidate and is kept, by digest, in the
platform's cache folder. The environment variable BERT_CONFORMANCE_CACHE names another folder, or is
`off`. `run --no-cache` neither reads nor writes it.
""",
    "make": """
The golden holds its batches, the oracle's float64 activations and the digests of all; the weights
stay where they are. It goes by its folder: --golden FOLDER, golden:FOLDER, load_golden("FOLDER"). A
file that is altered, cut short or gone, other weights and another architecture are an error (exit
code 3) before anything is judged. It may be moved together with its checkpoint, or away from it.
""",
}
