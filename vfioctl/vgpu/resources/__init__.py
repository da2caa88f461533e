"""One module for each kind of resource that a change of vGPUs or VFs sets."""
