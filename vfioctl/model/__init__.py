"""Frozen values: what the words mean. No input or output, no clock, no environment."""
