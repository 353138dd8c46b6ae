"""HTML: one file, complete in itself; every text is escaped, every plot is inline SVG; nothing needs a script."""
