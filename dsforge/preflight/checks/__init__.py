"""The checks before a launch, one module for each kind of thing: pure functions of a Case."""
