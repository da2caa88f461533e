"""Writes to vGPUs that are no mediated devices: NVIDIA's directory `nvidia/`, the profiles of xe. Also adds and removes
the directories of a driver as it is bound and unbound. The rules are those of tests/lab/modules/standin_vendor.c and
Documentation/ABI/testing/sysfs-driver-intel-xe-sriov. Changes only the tree."""

from __future__ import annotations

import errno as errnos
import json
import posixpath
import re

from vfioctl.kernel.host_paths import MDEV_PARENTS
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import capacity, class_devices, groups
from vfioctl.kernel.simulated.faults import Refusal, kstrtoul
from vfioctl.untrusted_text import parse_json

PARAMS_MAX = 256
_FOLDERS = (capacity.VENDOR, capacity.TYPES)
_YES, _NO = re.compile(r"[yYtT1].*|[oO][nN].*", re.DOTALL), re.compile(r"[nNfF0].*|[oO][fF].*", re.DOTALL)


def current_vgpu_type_store(tree: Tree, path: str, value: str) -> None:
    """A number creates a vGPU, 0 deletes it. Changing the type needs 0 first."""
    function = _device(path)
    kind, now = str(kstrtoul(value, bits=32, base=10)), tree.files[path]
    if groups.opened(tree, function) or capacity.NO_TYPE not in (kind, now):
        raise Refusal(errnos.EBUSY)
    card = capacity.card_of(tree, function)
    account = capacity.Account(tree, card)
    if kind == capacity.NO_TYPE:
        _clear(tree, function)
    elif account.available(function, kind):
        tree.put(path, kind)
    else:
        raise Refusal(errnos.EIO)
    capacity.recount(tree, card)


def vgpu_params_store(tree: Tree, path: str, value: str) -> None:
    """Sets the parameters of a mediated device, or of a VF with a type. A single space clears them."""
    text = value.split("\n", 1)[0]
    if len(text) >= PARAMS_MAX:
        raise Refusal(errnos.EINVAL)
    _refuse_without_type(tree, path)
    tree.put(path, text.rstrip())


def placement_id_store(tree: Tree, path: str, value: str) -> None:
    number = kstrtoul(value, bits=16, base=10)
    _refuse_without_type(tree, path)
    tree.refused.pop(path, None)
    tree.put(path, str(number))


def _refuse_without_type(tree: Tree, path: str) -> None:
    device = _device(path)
    if capacity.UUID.fullmatch(posixpath.basename(device)):
        if path.endswith("/placement_id") and groups.opened(tree, device):
            raise Refusal(errnos.EBUSY)
        return
    if tree.files.get(f"{device}/{capacity.VENDOR}/current_vgpu_type", capacity.NO_TYPE) == capacity.NO_TYPE:
        raise Refusal(errnos.EPERM)
    if groups.opened(tree, device):
        raise Refusal(errnos.EBUSY)


def _clear(tree: Tree, function: str) -> None:
    home = f"{function}/{capacity.VENDOR}"
    tree.put(f"{home}/current_vgpu_type", capacity.NO_TYPE)
    if f"{home}/vgpu_params" in tree.files:
        tree.put(f"{home}/vgpu_params", "")
    if tree.files.pop(f"{home}/placement_id", None) is not None:
        tree.put_refused(f"{home}/placement_id", errnos.ENXIO)


def _device(path: str) -> str:
    """The device whose directory `nvidia/` a file is in."""
    return path.rsplit("/", 2)[0]


def profile_number_store(tree: Tree, path: str, value: str) -> None:
    tree.put(path, str(kstrtoul(value, bits=32)))


def sched_priority_store(tree: Tree, path: str, value: str) -> None:
    """Accepts one of the words that the file shows. Only the PF's value can be changed."""
    words = tree.files[path].replace("[", "").replace("]", "").split()
    chosen = value.strip()
    if chosen not in words:
        raise Refusal(errnos.EINVAL)
    if not path.endswith("/pf/profile/sched_priority"):
        raise Refusal(errnos.EOPNOTSUPP)
    tree.put(path, " ".join(f"[{word}]" if word == chosen else word for word in words))


def sriov_drivers_autoprobe_store(tree: Tree, path: str, value: str) -> None:
    """kstrtobool: the first character decides; for `on` and `off` the second."""
    if not _YES.fullmatch(value) and not _NO.fullmatch(value):
        raise Refusal(errnos.EINVAL)
    tree.put(path, "1" if _YES.fullmatch(value) else "0")


def folders_gone(tree: Tree, device: str, driver: str) -> None:
    """Removes the driver's vGPU directories and saves them, without vGPUs, for `folders_back`."""
    if f"{device}/{capacity.VENDOR}/current_vgpu_type" in tree.files:
        capacity.known_types(tree, capacity.card_of(tree, device), [device])
        _clear(tree, device)
        group = groups.group_of(tree, device)
        groups.vfio_device_del(tree, device)
        groups.vfio_group_release(tree, group)
    kept: dict[str, class_devices.Kept] = {}
    for folder in _FOLDERS:
        kept |= class_devices.taken(tree, f"{device}/{folder}")
    if kept:
        capacity.facts_of(tree, device)["folders"] = json.dumps([driver, kept])
        capacity.recount(tree, capacity.card_of(tree, device))


def folders_back(tree: Tree, device: str, driver: str) -> None:
    """Restores the saved directories if it is the same driver."""
    facts = tree.properties.get(f"sim:{posixpath.basename(device)}", {})
    whose, kept = parse_json(facts.get("folders", '["", {}]'))
    if whose != driver:
        return
    del facts["folders"]
    for path, fact in kept.items():
        class_devices.put_back(tree, path, fact)
    if f"{device}/{capacity.TYPES}" in kept:
        groups.link(tree, f"{MDEV_PARENTS}/{posixpath.basename(device)}", device)
    else:
        groups.vfio_device_add(tree, device)
        if groups.CONTAINER in tree.nodes:
            groups.vfio_group_create(tree, groups.group_of(tree, device))
    capacity.recount(tree, capacity.card_of(tree, device))
