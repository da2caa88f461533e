"""Functions between the host's drivers and VFIO."""
