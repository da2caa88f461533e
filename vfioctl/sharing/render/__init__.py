"""Renders what enforces shares."""
