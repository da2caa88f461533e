"""Kernel -> model. Reads only; a fact that cannot be had costs that fact, never the listing."""
