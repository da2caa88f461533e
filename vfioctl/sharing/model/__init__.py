"""The values of GPU sharing."""
