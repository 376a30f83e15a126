"""New files and folders that are complete or absent: temporary names, flushes, renames."""
