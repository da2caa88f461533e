"""The device plugin's part of the ledger: cordoned devices."""
