"""Other tools that look into a run, asked what the suite is asked, and measured by the same code."""
