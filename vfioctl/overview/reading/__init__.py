"""Reads a host as a whole, or again in part. May not write to the host."""
