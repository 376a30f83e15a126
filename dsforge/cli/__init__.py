"""The command line: one small module per command, each reads, calls one function, shows."""
