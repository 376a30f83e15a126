"""Artifacts: text files in memory, and the one way to write a folder of them.

`write_all` is atomic for the folder as a whole. Every file is written and flushed under
a temporary name first; only then are they renamed into place, and a journal lets the next call
finish or undo a run that was cut between two renames.
"""
