"""Registers the permissions of device nodes with the core. May not hold logic."""

from vfioctl.access.model.intents import AccessIntent
from vfioctl.access.resources import AccessFile, NodePermissions, SetPermissions
from vfioctl.core.registry import Parts

PARTS = Parts(
    resources=(AccessFile(), NodePermissions()),
    actions=(SetPermissions(),),
    intents=(AccessIntent,),
)
