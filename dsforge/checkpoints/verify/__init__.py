"""Checks of `dsforge ckpt verify`, one module for each kind of file."""
