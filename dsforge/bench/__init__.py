"""The comparison of ZeRO stages as an experiment: same job, same data, same seed."""
