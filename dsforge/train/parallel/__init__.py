"""How ranks share a run: process groups, the DeepSpeed engine, and the parallel modes."""
