"""`dsforge probe` and `detect`: facts of nodes, measurements by ranks, and their cluster files."""
