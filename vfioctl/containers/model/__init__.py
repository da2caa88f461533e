"""Values and protocols of containers. May not do input or output."""
