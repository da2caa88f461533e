"""The running device plugin: sockets, registration, streams. Needs the extra `vfioctl[kubelet]`."""
