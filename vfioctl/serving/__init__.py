"""What services of vfioctl share: HTTP, the log, and what systemd is told. Knows no subsystem."""
