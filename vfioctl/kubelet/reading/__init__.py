"""Reads what the device plugin needs of a host. May not write."""
