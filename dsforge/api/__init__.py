"""The functions behind `import dsforge` and behind the command line: inputs in, results out.

`inputs` reads what a program or a person names; `planning`, `sizing`, `rehearsal` and `checking`
hold one function for each question; `results` holds what they answer. None of them prints or exits;
what is wrong with an input or a run is raised as a `DsforgeError`. Programs take all of it from
`dsforge`.
"""
