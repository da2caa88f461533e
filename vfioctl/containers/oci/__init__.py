"""OCI bundles: giving a container the devices of a claim by editing its config.json."""
