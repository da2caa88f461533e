"""The commands of containers."""
