#!/bin/sh
# Gives back the devices that were persistent when the initramfs was made, and are not any more.
/usr/lib/vfioctl/vfioctl-early release "$NEWROOT"
