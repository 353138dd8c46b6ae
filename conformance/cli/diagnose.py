"""The command `diagnose`: read the outputs of a closed system from a file and print the diagnosis."""

import shlex
from argparse import Namespace
from pathlib import Path

from conformance.cli.output import emit
from conformance.cli.progress_display import progress
from conformance.diagnosis import OutputTable, diagnose
from conformance.diagnosis.outputs import features_of
from conformance.diagnosis.outputs_file import Given, name_of, read
from conformance.errors import UsageError
from conformance.goldens.custom_golden import read_batches
from conformance.model.batch import Batch
from conformance.model.directory import load_directory
from conformance.model.sentence_transformers import truncated_dimensions
from conformance.model.tokenizer import tokenized, words
from conformance.report.diagnosis_report import document


def run(arguments: Namespace) -> int:
    """Run `diagnose`; return 0 if the correct network explains the outputs, else 1."""
    given, source = read(arguments.file), name_of(arguments.file)
    checkpoint = load_directory(arguments.checkpoint)
    batch = _batch(arguments, given)
    tables = _named(given, arguments)
    declared = truncated_dimensions(arguments.checkpoint)  # outputs may be whole nevertheless
    dimensions = arguments.dimensions or (declared if declared in map(features_of, tables.values()) else None)
    with progress(1) as display, display.case(source):
        diagnosis = diagnose(
            checkpoint,
            batch,
            tables,
            dtype=arguments.dtype,
            pooling=arguments.pooling,
            dimensions=dimensions,
            words=words(arguments.checkpoint, batch),
        )
    emit(document(diagnosis), arguments)
    return 0 if diagnosis.conforms else 1


def _named(given: Given, arguments: Namespace) -> dict[str, OutputTable]:
    """Return the tables; with `--name`, the only table under that name."""
    if arguments.name is None:
        return dict(given.tables)
    if len(given.tables) != 1:
        raise UsageError(
            f"--name names a single table, and {name_of(arguments.file)} has {len(given.tables)}: {', '.join(given.tables)}"
        )
    return {arguments.name: next(iter(given.tables.values()))}


def _no_inputs(arguments: Namespace) -> str:
    """Return the message for a call without the inputs of the system, with an example of each way to give them."""
    command = shlex.join(["bert-conformance", "diagnose", str(arguments.file), "--checkpoint", str(arguments.checkpoint)])
    return f"""\
the inputs are missing: {name_of(arguments.file)} has outputs only, and `diagnose` compares them with those of a correct
BERT on the same inputs. Give the texts that the system was given, one --text for each row of the outputs:

    {command} --text "I love cats!" --text "A lamp."

or its token ids in a file, as --batch FILE: {{"input_ids": [[101, 1045, 102], ...], "attention_mask": [[1, 1, 1], ...]}};
or write the outputs as JSON together with the texts: {{"text": ["I love cats!"], "embedding": [[0.125, -0.5, ...]]}}"""


def _batch(arguments: Namespace, given: Given) -> Batch:
    """Return the inputs, which must be given in exactly one place."""
    sources = {
        "--text": bool(arguments.text),
        "--batch": bool(arguments.batch),
        f"text in {name_of(arguments.file)}": bool(given.texts),
        f"{', '.join(given.inputs)} in {name_of(arguments.file)}": bool(given.inputs),
    }
    said = [name for name, there in sources.items() if there]
    if not said:
        raise UsageError(_no_inputs(arguments))
    if len(said) > 1:
        raise UsageError(f"the inputs are given {len(said)} times: {' and '.join(said)}; give them once")
    if arguments.batch:
        batches = read_batches(Path(arguments.batch))
        if len(batches) != 1:
            raise UsageError(f"{arguments.batch} has {len(batches)} batches ({', '.join(batches)}), expected one")
        return next(iter(batches.values()))
    if given.inputs:
        return Batch.of(given.inputs)
    texts = arguments.text or given.texts
    return tokenized(arguments.checkpoint, [(text, None) for text in texts])
