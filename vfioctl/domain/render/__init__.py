"""Renders what domains are, for people."""
