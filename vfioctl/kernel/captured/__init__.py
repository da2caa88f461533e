"""A captured root directory, which may be hostile: read-only, and nothing outside of it is read."""
