"""Frozen values of the overview. May not do input or output."""
