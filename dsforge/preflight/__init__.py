"""Preflight: this job on these hosts, looked at together before anything is started.

`job_files.py` reads what will be launched, `collect.py` asks every host over the launcher's own ssh
(with the programs of `remote/`), `host_facts.py` refuses answers that are not what was asked for.
What they found is one `Case`; the checks are pure functions of it, and `registry.CHECKS` names all.
"""
