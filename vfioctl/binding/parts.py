"""Registers the binding subsystem with the core. Resources are released in the order listed. May not hold logic."""

from vfioctl.binding.actions import GrantedLock, Load, Override, PersistenceMode, ReadRom, Unit
from vfioctl.binding.checks import Answers, Viable
from vfioctl.binding.model.intents import BindIntent, ResetIntent, RomIntent, UnbindIntent
from vfioctl.binding.records import PreviousBindings
from vfioctl.binding.resources.driver import DriverBinding, Module
from vfioctl.binding.resources.persistent import DeviceFile, RuleFile
from vfioctl.binding.resources.released import D3Cold, Framebuffer, Persistence, Power, Service, UnbindLock, VtConsole
from vfioctl.binding.resources.reset import Reset, ResetMethod
from vfioctl.binding.resources.rom import RomSwitch
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
        DeviceFile(),
        RuleFile(),
    ),
    actions=(Load(), Override(), PersistenceMode(), Unit(), GrantedLock(), ReadRom()),
    checks=(Viable(), Answers()),
    intents=(BindIntent, UnbindIntent, ResetIntent, RomIntent),
    records=(PreviousBindings(),),
)
