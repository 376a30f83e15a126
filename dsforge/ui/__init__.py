"""The planner as a web page: its files, and the Python that answers inside the browser.

The page runs the unmodified package under WebAssembly (Pyodide): `worker.py` takes questions and
gives answers as JSON, by the same functions as the command line. `export.py` puts the files of a
static web site together, `runtime.py` fetches what third parties wrote, `server.py` serves the site
on localhost. The site sends nothing anywhere.
"""
