"""The resources, actions, checks, facts, intents and records that the vGPU subsystem registers with the core."""

from vfioctl.core.registry import Parts
from vfioctl.vgpu.checks import VgpusReady
from vfioctl.vgpu.ledger.records import VgpuRecords
from vfioctl.vgpu.model.intents import CreateVgpuIntent, ProfileIntent, RemoveVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.report import TypeNameFacts
from vfioctl.vgpu.resources.files import DefinitionFile, Parameter, ProfileValue
from vfioctl.vgpu.resources.kept import KeptVgpu, StillThere
from vfioctl.vgpu.resources.vfs import Autoprobe, ManageVfs, NvidiaVfs, VfCount
from vfioctl.vgpu.resources.vgpus import Mdev, TypeOfVf

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
        KeptVgpu(),
    ),
    actions=(ManageVfs(), StillThere()),
    checks=(VgpusReady(),),
    facts=(TypeNameFacts(),),
    intents=(CreateVgpuIntent, RemoveVgpuIntent, SetVfsIntent, ProfileIntent),
    records=(VgpuRecords(),),
)
