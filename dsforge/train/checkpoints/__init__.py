"""Checkpoints of a run: writing, resuming, reshaping, converting, and the final weights."""
