"""CDI files: how container runtimes learn of passthrough devices by name."""
