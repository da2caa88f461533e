"""The text of vfioctl's own CDI file, and the devices in such a text. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from vfioctl.claims.model.cdi import CDEV_NODE, CONTROL_NODE, GROUP_NODE, CdiDevice, subject_called
from vfioctl.containers.cdi.validate import needed_version, problems_of
from vfioctl.errors import VfioctlError
from vfioctl.untrusted_text import parse_json


def text_of(kind: str, devices: Iterable[CdiDevice]) -> str:
    """Return the text of the file with these devices, in the order of their addresses; empty if there are none.

    Devices with group nodes need /dev/vfio/vfio too: it is common to all devices, and comes before them.
    """
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

    Nothing else may be in it: container runtimes run and mount as root what such a file names.
    """
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
    if not any(form.fullmatch(node["path"]) for form in (GROUP_NODE, CDEV_NODE)):
        raise ValueError("not a node of VFIO")
    return CdiDevice(subject_called(document["name"]), node["path"])
