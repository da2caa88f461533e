"""Checks of what stops or harms passthrough on a host, each with its evidence and its remedy."""
