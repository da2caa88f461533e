"""Reads the capacity of a host. May not write."""
