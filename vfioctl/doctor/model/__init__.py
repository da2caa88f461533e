"""Frozen values of the checks. May not do input or output."""
