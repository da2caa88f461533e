"""Registers the binding subsystem with the core. Resources are released in the order listed. May not hold logic."""

from vfioctl.binding.actions import GrantedLock, Load, Override, PersistenceMode, ReadRom, Unit
from vfioctl.binding.checks import Answers, Viable
from vfioctl.binding.model.intents import BindIntent, ResetIntent, RomIntent, UnbindIntent
from vfioctl.binding.records import PreviousBindings
from vfioctl.binding.resources.driver import DriverBinding
from vfioctl.binding.resources.framebuffer import Framebuffer
from vfioctl.binding.resources.module import Module
from vfioctl.binding.resources.persistence import Persistence
from vfioctl.binding.resources.power import Power
from vfioctl.binding.resources.released import D3Cold, VtConsole
from vfioctl.binding.resources.reset import Reset, ResetMethod
from vfioctl.binding.resources.rom import RomSwitch
from vfioctl.binding.resources.service import Service
from vfioctl.binding.resources.unbind_lock import UnbindLock
from vfioctl.core.registry import Parts

PARTS = Parts(
    resources=(
        Module(),
        Service(),
        Persistence(),
        VtConsole(),
        Framebuffer(),
        ResetMethod(),
        D3Cold(),
        Power(),
        UnbindLock(),
        DriverBinding(),
        Reset(),
        RomSwitch(),
    ),
    actions=(Load(), Override(), PersistenceMode(), Unit(), GrantedLock(), ReadRom()),
    checks=(Viable(), Answers()),
    intents=(BindIntent, UnbindIntent, ResetIntent, RomIntent),
    records=(PreviousBindings(),),
)
