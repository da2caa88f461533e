"""Reads what a host has for sharing GPUs."""
