"""A host that is one text file."""
