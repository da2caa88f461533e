"""Registers CDI files, and what keeps claims consistent with the journal. May not hold logic."""

from vfioctl.claims.model.cdi_intent import CdiIntent
from vfioctl.claims.records import ClaimRecords
from vfioctl.claims.resources.cdi_file import CdiFile
from vfioctl.core.registry import Parts

PARTS = Parts(resources=(CdiFile(),), intents=(CdiIntent,), records=(ClaimRecords(),))
