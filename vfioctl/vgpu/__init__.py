"""vGPUs and VFs: what there is, and making and removing them."""
