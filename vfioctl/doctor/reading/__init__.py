"""Reads what other subsystems know of a host, through their apis. May not write to the host."""
