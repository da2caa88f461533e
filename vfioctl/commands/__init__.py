"""The commands for the whole host: apply, recover, history, snapshot, holders, hosts."""
