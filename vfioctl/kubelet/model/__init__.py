"""The values of the device plugin. May not do input or output."""
