"""NVIDIA's Multi-Process Service: one control daemon for a GPU or a claim, with limits for its clients."""
