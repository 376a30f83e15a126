"""Engines to train with: one adapter each, which the loop, the stepper and the saver talk to."""
