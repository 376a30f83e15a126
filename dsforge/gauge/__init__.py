"""What each rank of `dsforge probe` does: collectives, products, copies, Adam, all at once.

Its own room beside `train`, because it needs torch, as nothing else of the doctor does, and trains
nothing. Ranks join as a training run does, so that they meet over the same launcher, interface and
back end.
"""
