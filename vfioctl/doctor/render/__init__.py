"""Renders the results of the checks."""
