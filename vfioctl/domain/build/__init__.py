"""Builds the XML of a domain: places it, lays it out, and writes the layout into a template."""
