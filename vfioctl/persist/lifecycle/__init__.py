"""What the use cases of persistence do: plan taking over what other programs restore."""
