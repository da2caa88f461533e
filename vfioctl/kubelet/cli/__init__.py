"""The commands of the device plugin."""
