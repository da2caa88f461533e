"""Checks the XML of a domain: by rules of its own, and by asking libvirt."""
