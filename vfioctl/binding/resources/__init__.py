"""The resources of the binding subsystem: one class in one file for each kind."""
