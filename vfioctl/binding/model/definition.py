"""Definitions: TOML files that name devices to bind to VFIO at each boot, and their udev rules. May not do input or
output.

A device is named by its address and its identity. The identity has what stays when the kernel numbers buses anew: ids,
class, and the path of device and function numbers through the bridges above."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from vfioctl.core.change import Change
from vfioctl.core.frozen import value_class
from vfioctl.core.value import Value
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import DEVICE_RULE, DEVICES, UDEV_RULES
from vfioctl.untrusted_text import parse_toml

DEFINITION, RULE = "device definition", "udev rule"
"""The kinds of resource."""
_ID, _HOP = "^[0-9a-f]{4}$", "[0-9a-f]{2}[.][0-7]"
PATH_FORM = rf"^[0-9a-f]{{4,8}}:[0-9a-f]{{2}}(/{_HOP}){{1,16}}$"
DRIVER_FORM = "^[a-z0-9][a-z0-9_-]{0,63}$"
_UUID_FORM = "^(GPU-[0-9a-f-]{36})?$"
_LONGEST = 65_536


class Identity(Value):
    """What identifies a device besides its address."""

    vendor: str = Field(pattern=_ID)
    device: str = Field(pattern=_ID)
    subsystem_vendor: str = Field(pattern=_ID)
    subsystem_device: str = Field(pattern=_ID)
    class_code: str = Field(pattern="^[0-9a-f]{6}$", description="class, subclass and interface")
    path: str = Field(
        pattern=PATH_FORM,
        description="domain and root bus, then device and function numbers from the root port to the device",
    )
    uuid: str = Field(default="", pattern=_UUID_FORM, description="from NVML; empty if it could not be read")
    twins: bool = Field(description="whether the host had other devices with the same ids")

    @property
    def ids(self) -> tuple[str, ...]:
        """What all devices of one model have in common."""
        return self.vendor, self.device, self.subsystem_vendor, self.subsystem_device, self.class_code


class DeviceDefinition(Value):
    """One function that is bound to a VFIO driver at each boot."""

    version: Literal[1] = 1
    address: PciAddress
    driver: str = Field(pattern=DRIVER_FORM)
    boot_display: bool = Field(default=False, description="whether it may be bound if it is the boot display")
    identity: Identity

    @property
    def text(self) -> str:
        """The definition in TOML, without a final newline, as files are read. No value needs an escape."""
        identity = self.identity.model_dump(mode="json")
        own = {name: value for name, value in self.model_dump(mode="json").items() if name != "identity"}
        return "\n".join([*map(_line, own.items()), "", "[identity]", *map(_line, identity.items())])

    @classmethod
    def parse(cls, text: str) -> DeviceDefinition:
        """Return the definition in a file. Raises ValueError, as pydantic does for wrong values."""
        return cls.model_validate(parse_toml(text, most=_LONGEST))

    @property
    def rule(self) -> str:
        """The udev rule, which names the driver for the device while no driver has it: see 62-vfioctl-boot.rules."""
        own = self.identity
        wanted = {
            "vendor": f"0x{own.vendor}",
            "device": f"0x{own.device}",
            "subsystem_vendor": f"0x{own.subsystem_vendor}",
            "subsystem_device": f"0x{own.subsystem_device}",
            "class": f"0x{own.class_code}",
        }
        matches = ", ".join(f'ATTR{{{name}}}=="{value}"' for name, value in wanted.items())
        if own.class_code.startswith("0300") and not self.boot_display:
            matches += ', ATTR{boot_vga}=="0"'
        place = f'ACTION=="add", SUBSYSTEM=="pci", DEVPATH=="{device_path_form(own.path)}"'
        return f'{_ABOUT.format(self.address)}\n{place}, {matches}, ENV{{VFIOCTL_DRIVER}}="{self.driver}"'


def _line(field: tuple[str, object]) -> str:
    name, value = field
    return f"{name} = {json.dumps(value)}"  # which TOML has too: no value here needs an escape


_ABOUT = "# Binds {} to VFIO at boot. vfioctl writes this file; `vfioctl persist remove` removes it."
RULE_FORM = re.compile(
    rf"{_ABOUT.format('[0-9a-f:.]+')}\n"
    r'ACTION=="add", SUBSYSTEM=="pci", DEVPATH=="\*/pci[0-9a-f:]+(/[0-9a-f:.?]+)+"'
    r'(, ATTR\{[a-z_]+\}=="0x[0-9a-f]{4,6}"){5}(, ATTR\{boot_vga\}=="0")?, ENV\{VFIOCTL_DRIVER\}="[a-z0-9_-]+"',
    re.ASCII,
)
"""The form of a rule. A plan file may contain no other: a udev rule can run any command."""


def device_path_form(path: str) -> str:
    """The pattern of a device's path in sysfs, with any bus number below a bridge: the kernel may change those."""
    root, *hops = path.split("/")
    domain = root.partition(":")[0]
    return f"*/pci{root}/" + "/".join(
        f"{root if number == 0 else f'{domain}:??'}:{hop}" for number, hop in enumerate(hops)
    )


def definition_file(address: str) -> str:
    """The path of the definition of a function."""
    return f"{DEVICES}/{address}.toml"


def rule_file(address: str) -> str:
    """The path of the udev rule of a function. It precedes 62-vfioctl-boot.rules, and udev's 80-drivers.rules."""
    return f"{UDEV_RULES}/{DEVICE_RULE.format(address)}"


def path_of(inventory: Inventory, function: Function) -> str:
    """The path of a function from its root bus."""
    hops, at = [function.address], function
    while at.upstream is not None and at.upstream in inventory.by_address and len(hops) < 16:
        at = inventory.by_address[at.upstream]
        hops.append(at.address)
    root = hops[-1].rpartition(":")[0]
    return "/".join([root, *(hop.rpartition(":")[2] for hop in reversed(hops))])


def ids_of(function: Function) -> tuple[str, ...]:
    """See `Identity.ids`."""
    return (
        function.vendor_id,
        function.device_id,
        function.subsystem_vendor_id,
        function.subsystem_device_id,
        function.class_code,
    )


def defined(inventory: Inventory, function: Function, driver: str, before: str) -> DeviceDefinition:
    """The definition of a function on this host as it is now. `before`: the text of its present definition, whose
    UUID is kept, because it cannot be read while the GPU is on VFIO."""
    identity = identity_of(inventory, function)
    try:
        own = DeviceDefinition.parse(before).identity
    except ValueError:  # none yet, or damaged
        own = identity
    if (own.ids, own.path) == (identity.ids, identity.path) and not identity.uuid:
        identity = identity.model_copy(update={"uuid": own.uuid})
    return DeviceDefinition(address=function.address, driver=driver, boot_display=function.boot_vga, identity=identity)


def identity_of(inventory: Inventory, function: Function) -> Identity:
    """The identity of a function on this host as it is now."""
    vendor, device, subsystem_vendor, subsystem_device, class_code = ids_of(function)
    uuid = function.nvml.uuid if function.nvml and function.nvml.uuid else ""
    return Identity(
        vendor=vendor,
        device=device,
        subsystem_vendor=subsystem_vendor,
        subsystem_device=subsystem_device,
        class_code=class_code,
        path=path_of(inventory, function),
        uuid=uuid if re.fullmatch(_UUID_FORM, uuid) else "",
        twins=any(o.address != function.address and ids_of(o) == ids_of(function) for o in inventory.functions),
    )


@value_class
class Found:
    """Where a persistent device is now."""

    address: PciAddress | None
    """None: not found, or not without doubt."""
    why: str = ""
    """What differs from the definition; empty if everything fits."""


def locate(definition: DeviceDefinition, inventory: Inventory) -> Found:
    """Where the device of a definition is now. A device is only taken for it if no other could be meant.

    Address, ids and path fit: that one. Otherwise a device with the same ids on the same path, which the kernel
    numbered anew; or the only device with these ids, if it was the only one when the definition was written."""
    own, same = definition.identity, definition.address
    models = [function for function in inventory.functions if ids_of(function) == own.ids]
    if own.uuid:  # a GPU that shows another UUID is another card
        models = [f for f in models if not (f.nvml and f.nvml.uuid) or f.nvml.uuid == own.uuid]
        if known := [f for f in models if f.nvml and f.nvml.uuid == own.uuid]:
            return _found(known[0].address, same)
    here = [function for function in models if path_of(inventory, function) == own.path]
    if here:
        return _found(here[0].address, same)
    if not models:
        at = inventory.by_address.get(same)
        instead = f": another device has its address ({at.vendor_id}:{at.device_id})" if at else ""
        return Found(address=None, why=f"no such device is on this host{instead}")
    if own.twins or len(models) > 1:
        others = ", ".join(function.address for function in models)
        return Found(address=None, why=f"it moved, and cannot be told from others with the same ids: {others}")
    return _found(models[0].address, same, other_path=True)


def locate_all(definitions: Mapping[str, DeviceDefinition], inventory: Inventory) -> Mapping[str, Found]:
    """Where the device of each definition is now, by file. A device that two definitions claim is nobody's."""
    found = {file: locate(definition, inventory) for file, definition in definitions.items()}
    often = Counter(place.address for place in found.values() if place.address)
    twice = "two definitions are about {}: remove one"
    return {
        file: Found(None, twice.format(place.address)) if place.address and often[place.address] > 1 else place
        for file, place in found.items()
    }


def _found(now: PciAddress, before: PciAddress, *, other_path: bool = False) -> Found:
    if now != before:
        return Found(address=now, why=f"it moved from {before} to {now}")
    return Found(address=now, why="it is on another path" if other_path else "")


def persistent_changes(address: PciAddress, before: tuple[str, str], wanted: DeviceDefinition | None) -> list[Change]:
    """The changes of both files of a function. `before`: their texts now. `wanted`: None to remove them."""
    after = (wanted.text, wanted.rule) if wanted else ("", "")
    names = (definition_file(address), rule_file(address))
    kinds = (DEFINITION, RULE)
    return [
        Change(kind=kind, name=name, subject=address, before=now, after=then)
        for kind, name, now, then in zip(kinds, names, before, after, strict=True)
        if now != then
    ]
