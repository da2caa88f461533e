"""Registers the definitions of domains, their volumes, and libvirt's hook. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.domain.actions import CreateImage, Define, DeleteVolume, Undefine, WriteSeed
from vfioctl.domain.model.definition import DefineIntent, UndefineIntent
from vfioctl.domain.model.hook import InstallHookIntent, RemoveHookIntent
from vfioctl.domain.resources.hook_script import HookScript
from vfioctl.domain.resources.libvirt import DiskImage, DomainDefinition, SeedVolume

PARTS = Parts(
    resources=(DomainDefinition(), DiskImage(), SeedVolume(), HookScript()),
    actions=(Define(), Undefine(), CreateImage(), WriteSeed(), DeleteVolume()),
    intents=(DefineIntent, UndefineIntent, InstallHookIntent, RemoveHookIntent),
)
