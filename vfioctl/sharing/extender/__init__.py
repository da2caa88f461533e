"""A scheduler extender of Kubernetes, which places pods that ask for memory of shared GPUs."""
