"""Registers what keeps claims consistent with the journal. May not hold logic."""

from vfioctl.claims.ledger.records import ClaimRecords
from vfioctl.core.registry import Parts

PARTS = Parts(records=(ClaimRecords(),))
