#!/bin/sh
# Reserves the devices of `vfioctl bind --persistent` in the initramfs, before udev loads their drivers.
/usr/lib/vfioctl/vfioctl-early
