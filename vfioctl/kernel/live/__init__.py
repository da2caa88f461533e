"""The host of this machine, or of a captured directory."""
