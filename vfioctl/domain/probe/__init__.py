"""Reads what domains depend on: the host and libvirt. May not write."""
