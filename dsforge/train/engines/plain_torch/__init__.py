"""Plain torch as an engine to train with: DDP, ZeroRedundancyOptimizer, FSDP2, tensor parallel."""
