"""What is wrong with a domain's XML: one small function for each rule. May not do input or output."""
