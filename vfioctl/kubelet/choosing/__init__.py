"""Decides which devices a resource has, and which of them a pod may get. Pure."""
