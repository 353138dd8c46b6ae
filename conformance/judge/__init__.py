"""How a difference is judged: statistics with derived thresholds, local and global error, matched filters."""
