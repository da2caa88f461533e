"""Compares a running domain with its document: values only. May not do input or output."""
