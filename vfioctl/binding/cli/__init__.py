"""The commands bind, unbind, reset and rom."""
