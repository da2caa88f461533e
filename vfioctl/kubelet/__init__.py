"""The node's part of Kubernetes: a device plugin that gives devices to pods from the ledger of claims."""
