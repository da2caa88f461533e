"""CDI files: vfioctl's own, a host's, and those that users name. As root, follows no other user's links."""

from __future__ import annotations

import errno as errnos
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vfioctl.claims.model.cdi import CONTROL_NODE, GROUP_NODE, CdiDevice, file_name, is_vfio_node, subject_called
from vfioctl.containers.cdi.validate import MOST_BYTES, needed_version, problems_of
from vfioctl.errors import ConflictError, HostError, KernelRefused, VfioctlError
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import replace_file
from vfioctl.kernel.host_paths import CDI_ETC, CDI_RUN
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import FileReader
from vfioctl.kernel.trusted import opened_directory, status_of
from vfioctl.kernel.untrusted_files import read_file, read_regular
from vfioctl.untrusted_text import parse_json

_ENDINGS = (".json", ".yaml")
_KIND = re.compile(r"""^kind:[ \t]*["']?([A-Za-z0-9_./-]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE)
_DEVICE = re.compile(r"""^[ \t]*(?:-[ \t]+)?name:[ \t]*["']?([A-Za-z0-9_.:-]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE)
_HINT = "name a directory that only you can change"
_YAML = "YAML: only its kind and its names were looked up"


def text_of(kind: str, devices: Iterable[CdiDevice]) -> str:
    """Return the text of the file with these devices, in the order of their addresses; empty if there are none.
    Devices with group nodes need /dev/vfio/vfio too: it is common to all devices, and comes before them."""
    listed = sorted(devices, key=lambda device: device.subject.order)
    if not listed:
        return ""
    document: dict[str, Any] = {
        "cdiVersion": "",
        "kind": kind,
        "devices": [{"name": device.name, "containerEdits": _edits(device.node)} for device in listed],
    }
    if any(GROUP_NODE.fullmatch(device.node) for device in listed):
        document["containerEdits"] = _edits(CONTROL_NODE)
    document["cdiVersion"] = needed_version(document)[0]
    return json.dumps(document, indent=2)


def _edits(node: str) -> dict[str, Any]:
    return {"deviceNodes": [{"path": node, "permissions": "rw"}]}


def devices_in(text: str, kind: str) -> tuple[CdiDevice, ...]:
    """Return the devices in a text that `text_of` made for this kind. Raises ValueError for any other text.
    Nothing else may be in it: container runtimes run and mount as root what such a file names."""
    if not text:
        return ()
    try:
        devices = tuple(_device(device) for device in parse_json(text, strict=True)["devices"])
        same = text_of(kind, devices) == text
    except (VfioctlError, LookupError, TypeError, ValueError):
        same = False
    if not same or problems_of(text):
        raise ValueError("not the value of a CDI file that vfioctl writes")
    return devices


def _device(document: Any) -> CdiDevice:
    (node,) = document["containerEdits"]["deviceNodes"]
    if not is_vfio_node(node["path"]):
        raise ValueError("not a node of VFIO")
    return CdiDevice(subject_called(document["name"]), node["path"])


@dataclass(frozen=True)
class CdiFileFound:
    """One CDI file. `devices`: the host's nodes of each device, by its name; with numbers if the file has them."""

    path: str
    kind: str = ""
    version: str = ""
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ours: bool = False
    """Whether its text is one that vfioctl writes."""
    problems: tuple[str, ...] = ()


def read_cdi_files(kernel: FileReader) -> tuple[CdiFileFound, ...]:
    """Return the files of the directories where runtimes look. A damaged one has its problems."""
    return tuple(_read(kernel, path) for path in _paths(kernel))


def _paths(kernel: FileReader) -> Iterator[str]:
    for place in (CDI_ETC, CDI_RUN):
        yield from (f"{place}/{name}" for name in names_in(kernel, place) if name.endswith(_ENDINGS))


def _read(kernel: FileReader, path: str) -> CdiFileFound:
    try:
        return understood(path, kernel.read(path))
    except KernelRefused as error:
        return CdiFileFound(path, problems=(f"cannot be read: {error.symbol}",))


def understood(path: str, text: str) -> CdiFileFound:
    """Return what a file says."""
    try:
        document: Any = parse_json(text, strict=True)
    except ValueError as error:
        return _from_yaml(path, text) if path.endswith(".yaml") else CdiFileFound(path, problems=(str(error),))
    kind: Any = document.get("kind") if isinstance(document, dict) else ""
    if problems := problems_of(text):
        return CdiFileFound(path, kind=kind if isinstance(kind, str) else "", problems=problems)
    devices = {device["name"]: _nodes(device) for device in document["devices"]}
    return CdiFileFound(path, kind, document["cdiVersion"], devices, ours=_is_ours(path, text, kind))


def _is_ours(path: str, text: str, kind: str) -> bool:
    try:
        return path.endswith(f"/{file_name(kind)}") and bool(devices_in(text, kind))
    except ValueError:
        return False


def _from_yaml(path: str, text: str) -> CdiFileFound:
    """There is no YAML parser here. Names are found line by line: rather too many than too few."""
    kind = _KIND.search(text)
    devices: Mapping[str, tuple[str, ...]] = dict.fromkeys(_DEVICE.findall(text), ())
    return CdiFileFound(path, kind[1] if kind else "", devices=devices, problems=(_YAML,))


def _nodes(device: Mapping[str, Any]) -> tuple[str, ...]:
    nodes = map(_host_node, device["containerEdits"].get("deviceNodes", ()))
    return tuple(node for node in nodes if node.partition(" ")[0] != CONTROL_NODE)


def _host_node(node: Mapping[str, Any]) -> str:
    """Return the host's node behind one in a container. Numbers count before paths (fillInfo of the CDI library)."""
    numbers = f" {node['major']}:{node.get('minor', 0)}" if node.get("type") and node.get("major") else ""
    return f"{node.get('hostPath') or node['path']}{numbers}"


def refuse_defined_elsewhere(files: Iterable[CdiFileFound], kind: str, names: Iterable[str], *, besides: str) -> None:
    """Raise ConflictError if a file other than `besides` defines one of these names too.
    Of two files with a name, runtimes take the one in /var/run/cdi, or neither."""
    wanted = set(names)
    for file in files:
        if file.kind == kind and file.path != besides and (both := sorted(wanted & set(file.devices))):
            raise ConflictError(
                f"{kind}={both[0]} is defined by {file.path} already",
                hint="use another --kind, or remove that file if nothing needs it",
                facts={"file": file.path, "names": both},
            )


@dataclass(frozen=True)
class Checked:
    """The result of checking one file, which anyone may have written."""

    path: str
    version: str = ""
    devices: int = 0
    problems: tuple[str, ...] = ()


def check_file(path: Path) -> Checked:
    """Return what is wrong with a file, if anything."""
    try:
        data = read_file(path, MOST_BYTES)
    except OSError as error:
        return Checked(str(path), problems=(f"cannot be read: {error.strerror}",))
    if problems := problems_of(data):
        return Checked(str(path), problems=problems)
    document = parse_json(data, strict=True)
    return Checked(str(path), document["cdiVersion"], len(document["devices"]))


def read_named(path: str) -> str:
    """Return the text of a file; empty if there is none. Raises HostError."""
    folder, name = os.path.split(path)
    refused, gone = host_error(f"{path} could not be read", hint=_HINT), suppress(FileNotFoundError)
    with refused, gone, opened_directory(folder) as directory:
        if status_of(directory, name) is not None:
            return read_within(directory, name)[0].decode("utf-8", "replace")
    return ""


def replace_named(path: str, text: str) -> None:
    """Replace a file as a whole; remove it if there is no text. Raises HostError."""
    with host_error(f"{path} could not be {'written' if text else 'removed'}", hint=_HINT):
        replace_file(path, text or None)


def read_within(directory: int, name: str) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a regular file in an open directory, following no link. Raises OSError."""
    with closing(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as fd:
        data, status = read_regular(fd, MOST_BYTES + 1), os.fstat(fd)
    if len(data) > MOST_BYTES:
        raise OSError(errnos.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB")
    return data, status


@contextmanager
def host_error(message: str, *, hint: str) -> Iterator[None]:
    """Raise HostError for an OSError in the block."""
    try:
        yield
    except OSError as error:
        failure = HostError(message, hint=hint)
        failure.kernel_said = error.strerror or str(error)
        raise failure from None
