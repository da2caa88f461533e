"""The commands inventory and show."""
