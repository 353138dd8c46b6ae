"""Candidates: how they are found, built from tables, and watched while they run."""
