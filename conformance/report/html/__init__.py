"""HTML: one file, complete in itself; every text is escaped, every plot is inline SVG, and a page says all of it without scripts."""
