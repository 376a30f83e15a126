"""Importing: other programs' configs and scripts, read as a `TrainingSetup`.

`read.py` reads files, `styles.py` lists the programs, one module in `styles/` for each; `shell/`
and `python_source.py` read scripts without running them. Nothing is executed, and no path leads out
of the folder of the files that were named. lint recognises files of others by `programs.py` and
reads flags by `script_text.py`, so this module imports nothing.
"""
