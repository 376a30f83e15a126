"""Lint: what is wrong with files that a person or another program wrote, before anything starts.

`files.py` finds, reads and repairs files; `reading/` turns a text into a positioned `Document`;
`rules/` holds the rules by subject, as functions over a `CheckedFile` or as rows (`rows.py`, with
the `conditions.py` that they are made of); `check.py` asks them all. `schemas/` holds the keys of
each release of DeepSpeed and Megatron-LM.
"""
