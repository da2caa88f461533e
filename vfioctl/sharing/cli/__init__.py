"""The commands of GPU sharing."""
