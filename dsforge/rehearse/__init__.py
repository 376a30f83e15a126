"""The real engine as rank r of N, without a cluster: the oracle of the estimates."""
