"""What `watch` shows. May not read the host."""
