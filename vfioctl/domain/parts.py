"""Registers the definitions of domains. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.domain.actions import Define, Undefine
from vfioctl.domain.model.definition import DefineIntent, UndefineIntent
from vfioctl.domain.resources.definition import DomainDefinition

PARTS = Parts(resources=(DomainDefinition(),), actions=(Define(), Undefine()), intents=(DefineIntent, UndefineIntent))
