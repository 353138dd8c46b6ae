"""Judgement of differences: statistics with derived thresholds, local and global error, matched filters."""
