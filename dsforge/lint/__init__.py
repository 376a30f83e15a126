"""Lint: what is wrong with files that a person or another program wrote, before anything starts.

Reading (`read.py`) turns each file into a positioned `Document`; a rule is one pure function over a
`Case` and stands beside its id, severity, reason and evidence; `registry.RULES` names them all.
"""
