"""Reading: what people write (YAML, config.json, hostfile, flags) becomes the values of `specs`.

The one gate for input. Behind it every value is typed, in its base unit and inside its limits, so
nothing further in checks input again. Every problem of every part is collected before one
`SpecError` is raised, and whatever reading chose itself comes back as a `Reason`.
"""
