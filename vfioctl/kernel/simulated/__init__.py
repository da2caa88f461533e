"""A recorded host that reacts to writes as Linux does; faults, hangs and crashes on demand."""
