"""GPU time of control groups, from the samples and counters of drivers."""
