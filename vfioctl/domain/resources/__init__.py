"""What a change of domains sets."""
