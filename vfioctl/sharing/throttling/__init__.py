"""Freezes and thaws control groups, and refuses those that must not be frozen."""
