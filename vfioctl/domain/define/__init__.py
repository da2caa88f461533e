"""Defines domains in libvirt, with their volumes and seeds, one by one or as a fleet."""
