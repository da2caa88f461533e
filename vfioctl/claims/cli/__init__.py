"""The commands of claims."""
