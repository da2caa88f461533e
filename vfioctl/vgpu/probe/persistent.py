"""Reads what is created at boot: definitions in vfioctl's format, and mdevctl definitions that vfioctl wrote. Reads
only. Only root can write these files, but their content is still validated: a damaged file costs only itself."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from vfioctl.core.value import first_problem
from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import OWN_DEFINITIONS
from vfioctl.kernel.lenient import failure_of, names_in
from vfioctl.kernel.protocol import PCI_ADDRESS, FileReader
from vfioctl.units import Uuid
from vfioctl.vgpu.model.intents import CreateVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.persistent import OwnDefinition, own_definition_file
from vfioctl.vgpu.model.vgpu import Created
from vfioctl.vgpu.probe.inventory import read_definitions

_LONGEST = 65_536
Wanted = CreateVgpuIntent | SetVfsIntent


def read_persistent(kernel: FileReader, created: Mapping[str, Created]) -> tuple[dict[str, Wanted], dict[str, str]]:
    """The intent of each file (VFs first, then types of VFs, then mediated devices), and errors of damaged files.
    `created`: the ledger's records of vGPUs. mdevctl definitions of any other vGPU are ignored."""
    own, problems = read_own_definitions(kernel)
    persistent = {own_definition_file(record.device): _wanted(record) for record in own}
    definitions, damaged = read_definitions(kernel)
    ours = {name for name, record in created.items() if record.persistent}
    for parent, uuid, definition in definitions:
        if uuid in ours and definition.start == "auto":
            try:  # from the file, not the ledger: mdevctl may have changed it since
                persistent[definition.path] = CreateVgpuIntent(
                    type=definition.type, parent=parent, uuids=(Uuid(uuid),), parameters=definition.attributes
                )
            except ValidationError as error:
                problems.append((definition.path, f"not a definition of a vGPU: {first_problem(error)[:80]}"))
    problems += ((path, text) for path, text in damaged if path.rpartition("/")[2].lower() in ours)
    return persistent, dict(problems)


def _wanted(own: OwnDefinition) -> Wanted:
    if own.vfs is not None:
        return SetVfsIntent(devices=(own.device,), vfs=own.vfs, persistent=True)
    return CreateVgpuIntent(
        type=own.name or own.type or "", parent=own.device, persistent=True, parameters=tuple(own.parameters.items())
    )


def read_own_definitions(kernel: FileReader) -> tuple[list[OwnDefinition], list[tuple[str, str]]]:
    """The definitions, VFs before the vGPUs on them, and the path of each unreadable file with the reason."""
    own_definitions, problems = [], []
    for name in names_in(kernel, OWN_DEFINITIONS):
        path, device = f"{OWN_DEFINITIONS}/{name}", name.removesuffix(".json")
        if not name.endswith(".json") or not PCI_ADDRESS.fullmatch(device):
            continue
        try:
            own = OwnDefinition.model_validate_json(kernel.read(path)[:_LONGEST])
        except KernelRefused as error:
            problems.append((path, error.symbol))
        except ValidationError as error:
            problems.append((path, f"not a file of vfioctl: {first_problem(error)[:80]}"))
        except Exception as error:  # noqa: BLE001 - the other files are read
            problems.append((path, f"not a file of vfioctl: {failure_of(error)}"))
        else:
            if own.device == device and (own.vfs is None) != (own.type is None):
                own_definitions.append(own)
            else:
                problems.append((path, "it is not about the device that it is named after"))
    return sorted(own_definitions, key=lambda own: (own.vfs is None, own.device.order)), problems
