"""The records of vGPUs in the ledger, and what its journal says of them."""
