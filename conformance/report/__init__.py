"""Reports of results: each kind of report is a document of blocks, rendered for the terminal, as Markdown or as HTML.

The sentences of a report on a run are in `run.run_document` (headings, legend), `run.case` (first origin, median local error),
`words` (exclusions, confirmed numbers), `findings` (mistake, evidence, cause) and `results.outcomes` (words for outcomes);
`cli.run` prints the lines `results:` and `report:`.
"""
