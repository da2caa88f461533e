"""The claims' part of the ledger: its tables, its rows, and its records in the journal's transactions."""
