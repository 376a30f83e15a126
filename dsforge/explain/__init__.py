"""Predictions laid open: when what happens in a step, and how each figure comes about."""
