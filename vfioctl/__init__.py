"""vfioctl hands GPUs over: from the host's driver to a VM or a secure container, and back.

The library's front door is :class:`vfioctl.host.Host`. Nothing is imported here, so that a
command pays only for what it uses."""

__version__ = "0.2.0"
