"""Values of domains: what is asked for, what was chosen, what was found. May not do input or output."""
