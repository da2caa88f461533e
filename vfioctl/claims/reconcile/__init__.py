"""Compares the ledger's claims with the machine, and fixes what is safe to fix."""
