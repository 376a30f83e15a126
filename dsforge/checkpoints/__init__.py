"""Checkpoints on the disk, anybody's: read without torch and without running what is in them.

A checkpoint that was saved wrongly looks like a good one until somebody needs it. This room reads
names, shapes, types and checksums of DeepSpeed, universal and Hugging Face files, says what is
wrong with them, and writes whole tensors out of their parts. It never unpickles: a pickle is a
program, and checkpoints come from strangers.
"""
