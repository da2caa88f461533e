"""What a boot restores: devices on VFIO, VFs and vGPUs, whoever has defined it."""
