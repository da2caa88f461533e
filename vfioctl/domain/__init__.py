"""libvirt domains: built with NUMA pinning, checked, provisioned, and verified while they run."""
