"""Allow-lists of GPUs for cgroups: what their processes may open."""
