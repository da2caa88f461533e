"""The running service: its loop, its totals and its metrics."""
