"""What is known about faults, one module for each field, all of it data."""
