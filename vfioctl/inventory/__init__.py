"""What a host has, and who uses it."""
