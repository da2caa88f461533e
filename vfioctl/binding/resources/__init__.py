"""The resources of the binding subsystem: one class for each kind."""
