"""Plan -> artifacts. Templates decide wording and order, this package decides values."""
