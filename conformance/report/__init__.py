"""Reports of results: each kind of report is a document of blocks, rendered for the terminal, as Markdown or as HTML."""
