"""Placement: which devices, CPUs and hugepages serve a request, and why."""
