"""Containers: how CDI, OCI runtimes and Kata Containers get the devices of claims."""
