"""Pickles read as data: nothing that they name is imported or called."""
