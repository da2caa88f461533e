"""Registers the definitions of domains, and libvirt's hook. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.domain.actions import Define, Undefine
from vfioctl.domain.model.definition import DefineIntent, UndefineIntent
from vfioctl.domain.model.hook import InstallHookIntent, RemoveHookIntent
from vfioctl.domain.resources.definition import DomainDefinition
from vfioctl.domain.resources.hook_script import HookScript

PARTS = Parts(
    resources=(DomainDefinition(), HookScript()),
    actions=(Define(), Undefine()),
    intents=(DefineIntent, UndefineIntent, InstallHookIntent, RemoveHookIntent),
)
