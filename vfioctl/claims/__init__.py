"""Claims: who holds which devices, CPUs and hugepages of this host, and for what."""
