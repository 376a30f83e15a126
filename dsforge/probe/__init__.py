"""`dsforge probe`: what to measure, the launch of the ranks that measure, the card they lead to."""
