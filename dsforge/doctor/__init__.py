"""Facts of a node and what they mean for a run."""
