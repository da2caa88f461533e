"""The state of a host as one document: shows it, plans what differs from it, and compares it."""
