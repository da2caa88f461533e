"""Explains a placement, or why there is none. Pure."""
