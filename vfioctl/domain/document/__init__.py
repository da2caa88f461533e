"""Documents of domains: reads, edits and compares their XML. May not ask the host or libvirt."""
