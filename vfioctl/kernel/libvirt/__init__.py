"""Asks libvirt about domains, storage and guests, and passes orders to it."""
