"""Starts, stops and verifies domains, and holds claims for them while they run."""
