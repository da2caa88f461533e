"""Chooses devices, CPUs and hugepages. Pure."""
