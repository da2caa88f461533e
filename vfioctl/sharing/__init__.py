"""Sharing GPUs among containers: what enforces a share, and what only reports it."""
