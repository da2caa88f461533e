"""Which methods a host has to enforce shares."""
