"""Reads plain SR-IOV: VFs without vGPU types, all created at once, of any driver, and Intel's xe with its profiles.
Counts the `virtfn` links: reading `sriov_numvfs` takes a lock that is held while VFs are removed (drivers/pci/iov.c).
Sources: Documentation/PCI/pci-iov-howto.rst; Documentation/ABI/testing/sysfs-driver-intel-xe-sriov. EUCLEAN: the tiles
of a card have different values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, FileReader
from vfioctl.vgpu.dialects.dialect import Facts, card_facts, instance_facts

TYPE = "vf"
GPU_CLASSES = ("0x03", "0x1200")


def physical_functions(kernel: FileReader, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the GPUs that can have VFs. `among`: functions that may be such; None: all of the host."""
    return tuple(
        address
        for address in (names_in(kernel, PCI_DEVICES) if among is None else among)
        if PCI_ADDRESS.fullmatch(address)
        and kernel.has(f"{PCI_DEVICES}/{address}/sriov_totalvfs")
        and text_of(kernel, f"{PCI_DEVICES}/{address}/class").startswith(GPU_CLASSES)
    )


class SriovReader:
    """See `Dialect`."""

    dialect = "sriov"
    has_profiles = False

    def __init__(self, kernel: FileReader, physical: Iterable[str] | None = None) -> None:
        """`physical`: what `physical_functions` returns, if that is known."""
        self._kernel, self._physical = kernel, physical

    def parents(self) -> Iterable[str]:
        known = physical_functions(self._kernel) if self._physical is None else self._physical
        for address in known:
            if self._kernel.has(f"{PCI_DEVICES}/{address}/sriov_admin") == self.has_profiles:
                yield address

    def read(self, parent: str) -> Facts:
        home = f"{PCI_DEVICES}/{parent}"
        of_card = card_facts(self._kernel, home) | {"sharing": "vfs"}
        links = self._kernel.directory(home, (), ("virtfn",)).links
        numbered = sorted(links.items(), key=lambda link: (len(link[0]), link[0]))
        vfs = [name for _, target in numbered if PCI_ADDRESS.fullmatch(name := target.rpartition("/")[2])]
        total = of_card.get("total_vfs", 0)
        kind = {
            "name": "virtual function",
            "profile": "VF",
            "max_instances": total,
            "device_api": "vfio-pci",
            "available": (0, 0) if vfs or not total else (0, total),  # the driver may create fewer
        }
        instances = [self._vf(address) for address in vfs]
        return {"card": parent, "types": {TYPE: kind}, "offers": {}, "instances": instances, "of_card": of_card}

    def _vf(self, address: str) -> Facts:
        try:
            facts = instance_facts(self._kernel, f"{PCI_DEVICES}/{address}")
        except KernelRefused as error:
            return {"id": address, "type": TYPE, "unknown": {"device": error.symbol}}
        return {"id": address, "type": TYPE, "state": "live" if facts["driver"] else "no driver", **facts}


PROFILE_FILES = frozenset({"exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota"})
_SCOPE = re.compile(r"pf|vf([1-9][0-9]{0,3})", re.ASCII)


class XeReader(SriovReader):
    """See `Dialect`."""

    dialect = "xe"
    has_profiles = True

    def read(self, parent: str) -> Facts:
        facts, admin = super().read(parent), f"{PCI_DEVICES}/{parent}/sriov_admin"
        scopes = [name for name in names_in(self._kernel, admin) if _SCOPE.fullmatch(name)]
        values, facts["unknown"] = {}, {}
        for scope in sorted(scopes, key=lambda name: (len(name), name)):
            try:
                profile = self._kernel.directory(f"{admin}/{scope}/profile", PROFILE_FILES, ("none",))
            except KernelRefused as error:
                facts["unknown"][scope] = error.symbol
                continue
            values[scope] = dict(profile.texts)
            facts["unknown"] |= {f"{scope}/{name}": why for name, why in profile.refused.items()}
        facts["profiles"] = values
        for number, vf in enumerate(facts["instances"], start=1):
            vf["attributes"] = values.get(f"vf{number}", {})
        return facts
