"""The checks: pure functions of the facts, and their table. May not do input or output."""
