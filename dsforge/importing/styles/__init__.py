"""Styles: one module for each program whose configs and scripts are read."""
