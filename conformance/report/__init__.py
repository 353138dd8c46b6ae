"""Reports of results: each kind of report is a document of blocks, rendered for the terminal, as Markdown or as HTML.

- Documents, made of the blocks of `document`: `run`, `trace`, `changes` (two runs), `difference` (two traces),
  `diagnosis_document` and `similarity_document`.
- Renderers: `terminal`, `markdown` and `html`, with the `axis` of plots; `structured` (JSON) and `junit` need no document.
  `output_formats` lists the formats, and `representations` are those of results in Python.
- Sentences of a report on a run: `run.run_document` (headings, legend), `run.case` (first origin, median local error),
  `coverage_sentences` (exclusions, confirmed numbers), `finding_sentences` (mistake, evidence, cause), `results.outcomes` (words
  for outcomes) and, for a residual without explanation, `judge.residual_description`. `cli.run` prints
  the lines `results:` and `report:`.
- `findings` groups failing activations by mistake; `unexposed_steps` finds the steps between exposed activations.
"""
