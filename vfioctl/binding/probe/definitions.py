"""Reads the definitions of devices that are bound at boot. Reads only. Only root can write these files, but their
content is still validated: a damaged file costs only itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from vfioctl.binding.model.definition import DeviceDefinition, definition_file, rule_file
from vfioctl.core.value import first_problem
from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import DEVICES
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import PCI_ADDRESS, FileReader


def read_definitions(kernel: FileReader) -> tuple[dict[str, DeviceDefinition], dict[str, str]]:
    """Return the definition in each file, by path, and why a file could not be used, by path."""
    definitions, damaged = {}, {}
    for name in sorted(names_in(kernel, DEVICES)):
        path, address = f"{DEVICES}/{name}", name.removesuffix(".toml")
        if not name.endswith(".toml") or name.startswith("."):
            continue
        try:
            definition = DeviceDefinition.parse(text := kernel.read(path))
        except KernelRefused as error:
            damaged[path] = error.symbol
        except ValidationError as error:
            damaged[path] = first_problem(error)[:160]
        except ValueError as error:  # of the parser
            damaged[path] = f"no TOML: {str(error)[:80]}"
        else:
            if definition.address != address or not PCI_ADDRESS.fullmatch(address):
                damaged[path] = f"it is about {definition.address}, and named otherwise"
            elif odd := _unlike(text, definition):
                damaged[path] = f"vfioctl-early does not read this line: {odd}"
            else:
                definitions[path] = definition
    return definitions, damaged


def read_files(kernel: FileReader, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, tuple[str, str]]:
    """Return the texts of the definition and the udev rule of each function; empty where there is none.

    Raises KernelRefused for a file that cannot be read."""

    def text(path: str) -> str:
        return kernel.read(path) if kernel.has(path) else ""

    return {address: (text(definition_file(address)), text(rule_file(address))) for address in addresses}


def _unlike(text: str, definition: DeviceDefinition) -> str:
    """Return the first line that is not as vfioctl writes it, which is all that a boot's shell script reads."""
    known = {"", *definition.text.splitlines()}
    return next((line[:60] for line in text.splitlines() if line not in known and not line.startswith("#")), "")
