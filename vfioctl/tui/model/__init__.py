"""What the screens show, as values, and which actions are possible. May not do input or output."""
