"""The commands that concern the whole host: apply, recover, history, snapshot, holders, hosts."""
