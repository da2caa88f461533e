"""What every cli and render module shares. Knows no subsystem."""
