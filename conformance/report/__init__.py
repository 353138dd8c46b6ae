"""How results are reported: a document of blocks for each kind of report, rendered for the terminal, in Markdown and in HTML."""
