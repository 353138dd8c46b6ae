"""Rendering as self-contained HTML: every text is escaped, every plot is inline SVG, and no content depends on a script."""
