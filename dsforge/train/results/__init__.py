"""What stands beside trained weights: the licence of their base, and a model card."""
