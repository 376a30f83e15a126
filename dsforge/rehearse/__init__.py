"""Runs the real DeepSpeed engine as one rank of N, without a cluster, and counts its memory."""
