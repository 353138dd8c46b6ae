"""The reference of each command, which `COMMAND --help` prints after the options; that of the program has the empty name."""

from collections.abc import Mapping

from conformance.cli.diagnose_formats import shown

REFERENCE: Mapping[str, str] = {
    "": """
To judge your own BERT, a torch module with any names, first in seconds on the smallest golden:

    bert-conformance map my_package.model:MyBert -o adaptor.py
    bert-conformance run -i adaptor.py:my_bert --golden tiny

A candidate is the implementation that is judged; a golden is a network with inputs, on which it is
run. `bert-conformance explain TERM` defines every other term of reports, too.

Exit codes: 0 conforms; 1 does not, or nothing was judged; 2 usage error; 3 the suite itself, one of
its files or this machine is at fault; 130 interrupted.
""",
    "map": """
MODULE:FACTORY is package.module:object or FILE.py:object, imported in this process. The object is a
subclass of torch.nn.Module, a function that builds a module, or a module (with --checkpoint, whose
sizes must be those of the module).

The module is built with sizes that are all different, filled with random parameters and run once.
For each step of BERT, `map` searches for the parameters with which the step yields a tensor that the
module computed, to within rounding and in any layout. The evidence is `by value`; `by shape` if only
one tensor has the shape; or `by name` if neither decides. FACTORY's arguments are recognized by the
usual names of sizes (vocab_size, d_model, n_layers, heads, ...), or by those of its configuration
class.

A setting that FACTORY does not take (hidden_act, layer_norm_eps, position_offset, ...) is fixed: the
adaptor's function `supported` skips the networks that have another value than that with which the
module was examined: BERT's, or that of --checkpoint. They are listed under `supported`. Without
arguments for the dropout rates, the module is not judged in training mode.

`open` lists what `map` could not decide. `differs` lists where the module computes something else
than BERT: the adaptor can be run, and `run` names the mistake.

Exit code 0: the adaptor can be run unchanged; 1: no output of the network was found, and `run` needs
one in `activations`.
""",
    "new": """
DIR is a new folder; its name is the name of the package. With --map, the package has the registration
that `map` proposes; without it, a registration to replace. No file is overwritten. The CI job installs
bert-conformance from a checkout: set the repository variable BERT_CONFORMANCE to OWNER/NAME of a copy.
""",
    "run": """
Without arguments, every registered implementation is run on every golden in float32, with the check
`values`.

Candidates: a registered name (see `bert-conformance list`); package.module:object, installed or in
the current folder; FILE.py:object; or an exported program together with the checkpoint from which it
was made, for example

    bert-conformance run -i model.onnx --checkpoint DIR --text "I love cats!"

The object is a torch module or its class, which is mapped as by `map`, an adaptor that `map` wrote, or
a function prepare(checkpoint, device, dtype). If none of the names given exists, nothing is run, and
earlier results are kept.

TorchScript archives (.pt), programs of torch.export (.pt2) and ONNX models (.onnx, extra `onnx`)
are run without their source code: interior activations are located in the graph by means of the
checkpoint's parameters (by name, or by value in a frozen archive), and a copy of the program returns
them as further outputs. The unmodified file is also judged, by its own outputs, since a runtime may
fuse operations differently if interior activations are observed. Loading a TorchScript archive runs its code; of a .pt2 file, only
tensors are unpickled. If the names of the inputs are not recognized, use
conformance.Archive(FILE, inputs=(...)).

Programs in any language and recorded activations are candidates, too:

    bert-conformance run -i 'cmd:node my_bert.mjs' --golden tiny
    bert-conformance run -i trace.safetensors

`explain cmd` prints the protocol and the paths of clients in Python and JavaScript, to be copied.
`explain trace` prints the file format, with code that writes such a file without this package. A
trace is judged on the weights, inputs, dtype and device named in its metadata.

Inputs: those of the golden; with --checkpoint, texts or a JSON file {"input_ids": [[...]],
"attention_mask": ...}, or several of these by name; with neither, a generated batch. --golden takes
a name, or a folder written by `golden make`.

Time of a correct BERT in float32, in CPU seconds on one thread with --in-process (`time bert-conformance
run -i hf-sdpa ... --in-process`): 6 for --golden tiny, of which most is the start of Python and torch; 9
for --golden minilm; 15 for all goldens; 26 for --golden tiny --check '*'. A failure with many mistakes
takes longer; --depth screen takes less.

Laws are the checks that compare two calls or look at what a call leaves behind: from padding-length to
tied-weights in the list of `explain`.

Searches: Hypothesis draws batches of all lengths, masks and tokens, maximises the error in sigma,
and shrinks failing batches. --examples sets their number, --seed the seed. A failure writes to
`failures/` in the folder of --out: the batch with its activations, which `replay` runs again, and a
script that shows the failure without the suite; its first lines have what adds the batch to a test.

Workers: each candidate is imported and run in its own process, without network access if the system
supports this (--network: with network access), and judged in the main process. Laws also inspect the
candidate's module in the worker.
--timeout SECONDS limits the candidate's time in one check, --memory SIZE (8GiB) its address space,
beyond that of an idle worker. The first MiB of its output is written to standard error.
--in-process runs candidates in the main process, for a debugger; all of their output is written to
standard error. If a worker ends, this is a crash of the candidate, and the next check starts a new
worker.

--jobs N runs N shards at a time, each in its own process with its share of the cores, and joins their
results; the shards are in the folder `parts` of DIR until all are complete.

An interrupted run (killed, interrupted, a full disk) is resumed by the same command with --resume:
results in the results file are kept, the other checks are run. A run with other candidates, goldens,
versions, options or code is not resumed; a candidate's code is its file or module, and what that imports
from its own package or folder. Two simultaneous runs with the same --out are refused. If a file of a
checkpoint or golden changes while a check runs, that check and later ones are errors that name the file.

Devices: `--device cuda`, or any other device of torch. Matrix units may truncate sums instead of
rounding them; they multiply half-precision formats, and float32 if a kernel splits it into TF32
parts. A step that matches this arithmetic is reported as `float32 in matrix units`. One pass in TF32
is not float32, and is reported as the mistake `precision-tf32`. A look-up with an index outside of its
table makes an accelerator unusable for the worker; the rest of the run continues in a new worker.
On CUDA the judge computes on the device as well, in float64; small activations, and all of them if the
device's memory is full, are judged in memory.

Known failures (--known-failures FILE, or an attribute `known_failures` of the implementation), in
TOML:

    [[known-failure]]
    check = "*"            # * and ? as in a shell; also golden, implementation, device, dtype
    golden = "tiny"
    reason = "epsilon is 1e-5 until 2.0"
    issue = "#17"
    activation = "*.output.LayerNorm"    # optional: it fails there and nowhere else
    fault = "epsilon"                    # optional, with an activation: the mistake found there

An entry whose check passes (outcome xpass), or that matches nothing, fails the run (exit code 1). An unknown name is an error. An
error of the suite itself is never a known failure.

Exit codes: 0 conforms; 1 does not, or nothing was judged; 2 usage error; 3 the suite itself, one of
its files or this machine is at fault; 130 interrupted.
""",
    "report": """
`run` writes a results file, results.jsonl, into its folder (--out). For several results files, as of
the shards of a run or of several devices, the report lists missing shards and contradictions. The exit
code is that of the runs, and at least 1 if results are missing or contradictory.

Formats: pretty is the report that `run` prints, for a terminal; text is the same without colours, for a
file; html has the graphics as well; json has every number.
""",
    "diff": """
For two implementations, traces or goldens: the steps at which differences originate, and the mistakes
of each side. The exit code is 1 if a difference originates anywhere.

For two results files, first the earlier (the baseline), then the later: what is worse, better, new or
gone. An activation that passes in both is
reported if its error changed by more than chance. The exit code is 1 if something is worse or gone,
a mistake is new, nothing could be compared, or the later run is incomplete.
""",
    "trace": """
Prints the tokens, then each activation with its shape, statistics and equation; for two sides, side
by side with their differences. The page (-o FILE.html) draws the modules and the attention of every
head, and shows the predictions of a masked-LM head for each [MASK]. Texts are tokenized with the
tokenizer of --checkpoint, or of all-MiniLM-L6-v2. `golden:NAME` traces the oracle.
""",
    "diagnose": f"""
A closed system is one whose outputs are all that is known: a library, a server, a device. Give its
outputs, the checkpoint that it should run, and the inputs that it was given. For example, for the
embeddings of two texts, as printed:

    bert-conformance diagnose --checkpoint DIR --outputs out.txt --text "I love cats!" --text "A lamp."

or, from a server, through a pipe:

    curl -s URL ... | bert-conformance diagnose --checkpoint DIR --outputs - --text "A lamp."

FILE has one or more outputs: last_hidden_state, pooler_output, embedding, logits, or any activation.
JSON may also have the inputs (`text` or `input_ids`, ...). An output without a name, or with the name
of a variable, is identified by its axes or by --output. null and "..." stand for unknown values: of a
table printed with an ellipsis, the edges are judged if the inputs and the checkpoint determine their
position. Embeddings that the system shortens (--dimensions, the directory's truncate_dim, or null in
place of all but the first features of every row) are normalised after they are cut. The rounding of
printed numbers, and of numbers stored in a narrower format than --dtype, is part of sigma, and the
pooling of an embedding is part of the model. Explanations of one, two and three mistakes are ranked by
evidence. For embeddings of texts, these include a text that was truncated too early and a missing
prefix. If the outputs conform with their rows in another order, that order is reported, and no other
explanation. --time-limit ends the search with the best explanation found so far, and reports what was
not tried.

Formats of FILE, each with an example:

{shown()}
""",
    "similarity": """
Each text is embedded by A and by B. All pairs of texts are ranked by cosine similarity; a pair changes
rank if its order relative to another pair changes. For each such pair, the report says whether
rounding explains the change: how far rounding, of every step since the token ids and of printed
numbers, may change each cosine is derived from the checkpoint. With two dtypes (--dtype float32
--dtype bfloat16), the weights of each side are rounded to its own dtype. N texts need N² backward
sweeps through the network on one text. There is no --golden, since a golden holds token ids, and
similarity ranks texts.

Exit code 0: rounding explains every change of order, or there is none; 1: it does not.
""",
    "cache": """
The accumulated sigma of a network on a batch does not depend on the candidate. It is stored by digest
in the platform's cache folder. The environment variable BERT_CONFORMANCE_CACHE names another folder,
or is `off`. `run --no-cache` neither reads nor writes the cache.
""",
    "verify": """
Three things are verified, each in a line of its own: the stored files have the digests of the manifest;
weights and batches, generated again, are the same bit for bit; and so are the oracle's activations to
within the rounding of float64. Exit code 3: one of them is not.
""",
    "power": """
A line for each golden, dtype and mistake: the z that the mistake would have if a candidate made it (its
expected z), at the activations where it is most and least visible, and at how many of them it is
separable, that is, detected but for a chance of 3e-6 (expected z of at least 12).
""",
    "replay": """
FILE is failures/NAME.safetensors in the folder of a run, or its results.jsonl. The candidate is run
again on the saved batch; nothing is written. A candidate in a FILE.py is found from any folder; an object
of a module must be importable. Exit code 0: the failure does not occur any more.
""",
    "explain": """
Examples:

    bert-conformance explain sigma                       a term
    bert-conformance explain gelu-variant                a mistake: equation, usual cause, repair
    bert-conformance explain padding-length              a check
    bert-conformance explain attention.self.probs        an activation: equation, shape, parents
    bert-conformance explain tiny                        a golden
    bert-conformance explain global rms                  words need no quotes

Words are first joined to one name; if there is none, the longest names are explained in turn.
Without a name, all names are listed.
""",
    "make": """
The golden holds its batches, the oracle's float64 activations and the digests of all files and of the
weights; the weights are not copied. It is used by its folder: --golden FOLDER, golden:FOLDER,
load_golden("FOLDER"). A modified, truncated or missing file, other weights, or another architecture
is an error (exit code 3) before anything is judged. The golden may be moved together with its
checkpoint, or separately.
""",
}
