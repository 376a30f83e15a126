"""Exact device memory: one training step of a dense decoder, simulated allocation by allocation."""
