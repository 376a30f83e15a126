"""A language server: the findings, explanations and repairs of lint in an editor.

`server.py` speaks the protocol through pygls; `session.py` says what is checked against what;
`hovers.py` and `plan_memory.py` make the text that is shown for a key.
"""
