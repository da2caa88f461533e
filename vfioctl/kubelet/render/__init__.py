"""Renders the device plugin's state. May not read the host."""
