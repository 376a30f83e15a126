"""The rules of lint, by subject; each stands beside its severity, reason and evidence."""
