"""Chooses where a domain's vCPUs, memory and devices are, and says why. Pure."""
