"""Shell scripts: which commands a script would start, worked out without running anything."""
