"""What a live screen shows of a host: everything in one look, and the events that say when to look again."""
