"""The only package that touches /sys, /proc, /dev, ioctls, modprobe and udev."""
