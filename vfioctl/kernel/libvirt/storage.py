"""Reads libvirt's storage pools and volumes; has it create and delete volumes. Functions of a URI and words that return
plain data, see `vfioctl.kernel.libvirt`. libvirt calls qemu-img, and sets owner and mode of what it creates."""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from vfioctl.errors import BadSpec, VfioctlError
from vfioctl.kernel.disk_images import MOST_IMAGE_BYTES, digest_of, files_in, image_of, seed_files
from vfioctl.kernel.libvirt.answers import CHANGED, NO_VOLUME, Answer, answered, connected, on_connection

WRITTEN = " written"
"""Ends the description of an image with data of a guest."""
INCOMPLETE = "incomplete"
"""Stands for a seed of which a part is missing."""
_EMPTY = 16 << 20
"""The most that the tables of a new image take; a guest that has written takes more."""


def image_text(size: int, base: str, base_format: str) -> str:
    """Return a disk image in words: its size in bytes, and what it is based on. As in a plan."""
    return f"{size} on {base_format} {base}" if base else str(size)


@on_connection()
def pool(connection: Any, libvirt: Any, name: str, base: str = "") -> tuple[str, str, bool]:
    """The pool's kind and directory; and whether the file `base` is there, as far as that can be seen from here."""
    import xml.etree.ElementTree as ET

    root = ET.fromstring(connection.storagePoolLookupByName(name).XMLDesc(0))  # noqa: S314 - libvirt's own
    is_there = not base or os.path.exists(base) or not connection.getURI().startswith("qemu:///")
    is_there = is_there or _is_volume(connection, libvirt, base)
    return root.get("type", ""), root.findtext("target/path", ""), is_there


def _is_volume(connection: Any, libvirt: Any, path: str) -> bool:
    try:
        connection.storageVolLookupByPath(path)
    except libvirt.libvirtError:
        return False
    return True


@on_connection(writes=True, instead={NO_VOLUME: ""})
def volume(connection: Any, _: Any, pool: str, name: str) -> str:
    """A disk image in words, see `image_text`, with WRITTEN if a guest has data there; empty if there is none."""
    return _described(_fresh_volume(connection, pool, name))


@on_connection(writes=True, instead={NO_VOLUME: ""})
def seed(connection: Any, _: Any, pool: str, name: str) -> str:
    """The digest of what a guest reads in a seed, or INCOMPLETE; empty if there is none."""
    return _digest(connection, _fresh_volume(connection, pool, name))


def _fresh_volume(connection: Any, pool: str, name: str) -> Any:
    libvirt_pool = connection.storagePoolLookupByName(pool)
    libvirt_pool.refresh()  # libvirt does not see what others have created or removed
    return libvirt_pool.storageVolLookupByName(name)


def _described(volume: Any) -> str:
    import xml.etree.ElementTree as ET

    root = ET.fromstring(volume.XMLDesc(0))  # noqa: S314 - libvirt's own
    _, size, allocated = volume.info()
    base = root.findtext("backingStore/path", "")
    kind = root.find("backingStore/format")
    text = image_text(size, base, "" if kind is None else kind.get("type", ""))
    return f"{text}{WRITTEN}" if allocated > _EMPTY else text


def _digest(connection: Any, volume: Any) -> str:
    size = volume.info()[1]
    if not 0 < size <= MOST_IMAGE_BYTES:
        return INCOMPLETE
    stream, content = connection.newStream(), BytesIO()
    volume.download(stream, 0, size, 0)
    stream.recvAll(lambda _stream, data, _: content.write(data), None)
    stream.finish()
    files = files_in(content.getvalue())
    return digest_of(files) if files else INCOMPLETE


@on_connection(writes=True)
def create_image(connection: Any, _: Any, pool: str, name: str, text: str) -> None:
    """Creates a disk image in qcow2 from its words, see `image_text`; of size 0: as large as its base."""
    size, _, based = text.partition(" on ")
    kind, _, base = based.partition(" ")
    described = _document(name, "" if size == "0" else size, "qcow2")
    if base:
        backing = SubElement(described, "backingStore")
        SubElement(backing, "path").text = base
        SubElement(backing, "format", {"type": kind})
    connection.storagePoolLookupByName(pool).createXML(tostring(described, "unicode"), 0)


def write_seed(uri: str, pool: str, name: str, digest: str, *files: str) -> Answer:
    """Creates a volume with a seed, whose files must be those of the digest; see `seed_content`."""
    try:
        content = seed_content(digest, *files)
    except VfioctlError as error:
        return None, CHANGED, error.message

    def order() -> None:
        with connected(uri, writes=True) as (connection, _):
            described = tostring(_document(name, str(len(content)), "raw"), "unicode")
            made = connection.storagePoolLookupByName(pool).createXML(described, 0)
            stream = connection.newStream()
            made.upload(stream, 0, len(content), 0)
            left = BytesIO(content)
            stream.sendAll(lambda _stream, size, _: left.read(size), None)
            stream.finish()

    return answered(order)


def seed_content(digest: str, instance_id: str, hostname: str, user_data: str, network_config: str) -> bytes:
    """Return the image of a seed. Raises BadSpec if its files are not those of the digest, MissingLibrary."""
    files = seed_files(instance_id, hostname, user_data, network_config)
    if digest_of(files) != digest:
        raise BadSpec(f"{' or '.join(filter(None, (user_data, network_config)))} has changed")
    return image_of(files)


@on_connection(writes=True)
def delete_volume(connection: Any, _: Any, pool: str, name: str) -> None:
    """Deletes a volume."""
    connection.storagePoolLookupByName(pool).storageVolLookupByName(name).delete(0)


def _document(name: str, size: str, kind: str) -> Element:
    root = Element("volume")
    SubElement(root, "name").text = name
    if size:
        SubElement(root, "capacity", {"unit": "bytes"}).text = size
    SubElement(root, "allocation").text = "0"
    SubElement(SubElement(root, "target"), "format", {"type": kind})
    return root
