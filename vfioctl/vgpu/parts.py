"""The resources, actions, checks, facts, intents and records that the vGPU subsystem registers with the core."""

from vfioctl.core.registry import Parts
from vfioctl.vgpu.actions import ManageVfs
from vfioctl.vgpu.checks import VgpusReady
from vfioctl.vgpu.facts import TypeNameFacts
from vfioctl.vgpu.ledger.records import VgpuRecords
from vfioctl.vgpu.model.intents import CreateVgpuIntent, ProfileIntent, RemoveVgpuIntent, SetVfsIntent
from vfioctl.vgpu.resources.autoprobe import Autoprobe
from vfioctl.vgpu.resources.definition import DefinitionFile
from vfioctl.vgpu.resources.mdev import Mdev
from vfioctl.vgpu.resources.parameter import Parameter
from vfioctl.vgpu.resources.profile import ProfileValue
from vfioctl.vgpu.resources.vf_count import NvidiaVfs, VfCount
from vfioctl.vgpu.resources.vgpu_type import TypeOfVf

PARTS = Parts(
    resources=(
        Mdev(),
        TypeOfVf(),
        VfCount(),
        NvidiaVfs(),
        Autoprobe(),
        Parameter(),
        ProfileValue(),
        DefinitionFile(),
    ),
    actions=(ManageVfs(),),
    checks=(VgpusReady(),),
    facts=(TypeNameFacts(),),
    intents=(CreateVgpuIntent, RemoveVgpuIntent, SetVfsIntent, ProfileIntent),
    records=(VgpuRecords(),),
)
