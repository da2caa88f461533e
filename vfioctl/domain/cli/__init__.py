"""The command `vfioctl domain`."""
