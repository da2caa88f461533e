"""What can be sliced on a host, and its slices: one module for each interface that the kernel has. Reads only."""
