"""The commands that belong to no subsystem: apply, recover, history, snapshot, hosts."""
