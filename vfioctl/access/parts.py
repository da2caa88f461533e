"""Registers the permissions of device nodes with the core. May not hold logic."""

from vfioctl.access.model.intents import AccessIntent
from vfioctl.access.resources import AccessFile, NodePermissions, SetPermissions
from vfioctl.core.registry import Parts

PARTS = Parts(
    resources=(NodePermissions(), AccessFile()),  # the note is written first: udev may handle a new node meanwhile
    actions=(SetPermissions(),),
    intents=(AccessIntent,),
)
