"""Reports: views of the records, a Markdown document that a template writes over each, and its renderings.

- Views: `run` with `case`, `places` and `repeated`, `changes` (two runs), `difference` (two traces), `trace_report` and
  `diagnosis_report`. The sentences are those of `finding` (mistake, evidence, cause, repair), `coverage_sentences`
  (exclusions, confirmed numbers) and `unexposed_steps`; `findings` groups failing activations by mistake.
- Documents: `document`, with its `templates` and the `drawings` of pages.
- Renderings: Markdown as it is, `terminal` and `page`, the data as JSON, and `junit`. All are listed in `output_formats`.
"""
