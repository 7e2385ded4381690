"""Objectives side by side: the same base, seeds and budget, each run in a process of its own."""
