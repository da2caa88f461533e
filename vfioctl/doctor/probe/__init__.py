"""Reads what the checks judge. May not write to the host."""
