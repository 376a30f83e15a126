"""Preflight: this job on these hosts, looked at together before anything is started.

`job.py` reads what will be launched, `visit.py` asks every host over the launcher's own ssh (with
the programs of `remote/`), `facts.py` refuses answers that are not what was asked for. What they
found is one `Case`; the rules are pure functions over it and `registry.CHECKS` names them all.
"""
