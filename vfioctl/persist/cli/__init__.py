"""The commands of `vfioctl persist`."""
