"""Follows the events of a host. May not write to the host."""
