"""Checkpoints on disk, from any source: read without torch and without executing their content.

A checkpoint that was saved wrongly looks like a good one until somebody needs it. This room reads
names, shapes, types and checksums of DeepSpeed, universal and Hugging Face files, says what is
wrong with them, and writes whole tensors out of their parts. It never unpickles: a pickle is a
program, and checkpoints may come from people whom you do not know.
"""
