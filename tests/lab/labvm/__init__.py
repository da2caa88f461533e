"""The build-machine side of the lab: makes the disks and runs the machine; imports nothing of vfioctl."""
