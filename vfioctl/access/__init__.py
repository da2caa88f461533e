"""Gives users and groups that claims name access to device nodes, and takes it back. Follows claims."""
