"""The volumes of a simulated host's libvirt, which the host's file keeps: its test driver forgets them.

The pools are the test driver's, and it reads the document of each volume. An image is kept as its words, see
`image_text`; a seed as the digest of what a guest reads in it, from an image that is made as on a machine.
"""

from __future__ import annotations

from vfioctl.errors import VfioctlError
from vfioctl.kernel.libvirt.answers import CHANGED, NO_VOLUME, value_of
from vfioctl.kernel.libvirt.domains import asked_here
from vfioctl.kernel.libvirt.storage import seed_content
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.seed_image import digest_of, files_in

VOLUMES = "/etc/libvirt/storage"
"""The directory of the pools, each with a file for each volume."""
ORDERS = ("create_image", "write_seed", "delete_volume")
_BASE_SIZE = 10 << 30
"""Of every base image, which is no more than a name here."""


def ask(tree: Tree, uri: str, question: str, pool: str, name: str) -> str:
    """See `Kernel.ask_libvirt`."""
    asked_here(uri, "pool", pool)
    del question
    return tree.files.get(f"{VOLUMES}/{pool}/{name}", "")


def tell(tree: Tree, uri: str, order: str, pool: str, name: str, *words: str) -> None:
    """See `Kernel.tell_libvirt`."""
    asked_here(uri, "pool", pool)
    path = f"{VOLUMES}/{pool}/{name}"
    if order == "delete_volume":
        if path not in tree.files:
            _refuse(uri, order, pool, name, NO_VOLUME, f"Storage volume not found: no storage vol '{name}'")
        tree.remove(path)
        return
    if path in tree.files:
        _refuse(uri, order, pool, name, _EXISTS, f"storage volume '{name}' exists already")
    if order == "create_image":
        size, _, base = words[0].partition(" on ")
        text = f"{_BASE_SIZE if size == '0' else size}{' on ' * bool(base)}{base}"
        asked_here(uri, order, pool, name, text)
        tree.put(path, text)
        return
    try:
        content = seed_content(*words)
    except VfioctlError as error:
        _refuse(uri, order, pool, name, CHANGED, error.message)
    else:
        tree.put(path, digest_of(files_in(content)))


_EXISTS = 90
"""VIR_ERR_STORAGE_VOL_EXIST."""


def _refuse(uri: str, order: str, pool: str, name: str, code: int, text: str) -> None:
    value_of((None, code, text), uri, order, (pool, name))
