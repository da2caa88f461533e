"""The command that opens the screens."""
