"""What each rank of `dsforge probe` does: collectives, products, copies, Adam, all at once.

The only part of the probe that needs torch. Ranks join as a training run does, so that they meet
over the same launcher, interface and back end.
"""
