"""Access to the host. The only package that uses /sys, /proc, /dev, ioctls, modprobe and udev."""
