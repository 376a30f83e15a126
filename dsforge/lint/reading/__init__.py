"""Reading for lint: what kind of file a text is, and where each key and value stands in it."""
