"""Disk images of domains: which file one is, and on which other one it is based; cloud-init's NoCloud seeds. Reads
regular files only, and not much of them. Alone imports pycdlib, an extra. Sources: QEMU's docs/interop/qcow2.txt,
https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping
from io import BytesIO

from vfioctl.errors import BadSpec, MissingLibrary
from vfioctl.kernel.protocol import DiskImage
from vfioctl.kernel.untrusted_files import read_file, read_start
from vfioctl.untrusted_text import parse_json

_MAGIC, _HEADER, _LONGEST_NAME = b"QFI\xfb", 1 << 16, 1023
META, USER, NETWORK = "meta-data", "user-data", "network-config"
LABEL = "cidata"
"""The label of the file system, by which cloud-init finds it."""
MOST_BYTES = 1 << 20
"""Of each file."""
MOST_IMAGE_BYTES = 8 << 20
_SHORT = {META: "/META.;1", USER: "/USER.;1", NETWORK: "/NETWORK.;1"}


def disk_image(path: str) -> DiskImage:
    """Return the image at a path of this machine, which need not exist."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return DiskImage(os.path.realpath(path.replace("\0", "")))
    except OSError as error:
        return DiskImage(os.path.realpath(path), unknown=str(error.strerror))
    if not stat.S_ISREG(status.st_mode):
        return DiskImage(f"device {status.st_rdev}" if status.st_rdev else os.path.realpath(path))
    file = f"file {status.st_dev} {status.st_ino}"
    try:
        backing = _backing(read_start(path, _HEADER))
    except OSError as error:
        return DiskImage(file, unknown=str(error.strerror))
    except EOFError:
        return DiskImage(file, unknown="its header is damaged")
    folder = os.path.dirname(os.path.realpath(path))
    return DiskImage(file, os.path.join(folder, backing) if backing else "")


def _backing(header: bytes) -> str:
    """Return the name in a qcow2 header; empty if it names no file. Raises EOFError if it is not where it should be."""
    offset, size = int.from_bytes(header[8:16]), int.from_bytes(header[16:20])
    if not header.startswith(_MAGIC) or not offset:
        return ""
    if size > _LONGEST_NAME or offset + size > len(header):
        raise EOFError
    name = header[offset : offset + size].decode(errors="replace")
    if name.startswith("json:"):
        return _named_in(name.removeprefix("json:"))
    return "" if "://" in name or "\0" in name else name.removeprefix("file:")


def _named_in(text: str) -> str:
    try:
        options = parse_json(text)
        file = options.get("file", options)
        name = options.get("file.filename") or (file.get("filename") if isinstance(file, dict) else "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return name if isinstance(name, str) and "://" not in name and "\0" not in name else ""


def seed_files(instance_id: str, hostname: str, user_data: str, network_config: str) -> dict[str, bytes]:
    """Return the files of a seed. `user_data`, `network_config`: the paths of two of them; the second may be empty.
    Raises BadSpec for a file that cannot be read."""
    meta = {"instance-id": instance_id, "local-hostname": hostname}
    files = {META: (json.dumps(meta) + "\n").encode(), USER: _content(user_data)}  # JSON is YAML
    return {**files, NETWORK: _content(network_config)} if network_config else files


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return SHA-256 over the names and contents, as hexadecimal digits."""
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()


def refuse_without_library() -> None:
    """Raise MissingLibrary if images cannot be made here."""
    from importlib.util import find_spec

    if find_spec("pycdlib") is None:
        why = "a cloud-init seed needs pycdlib, which is not installed"
        raise MissingLibrary(why, hint="pip install 'vfioctl[cloud-init]'")


def image_of(files: Mapping[str, bytes]) -> bytes:
    """Return an image with these files. Raises MissingLibrary."""
    refuse_without_library()
    import pycdlib

    image, made = pycdlib.PyCdlib(), BytesIO()
    image.new(interchange_level=1, joliet=3, rock_ridge="1.09", vol_ident=LABEL)
    for name, content in files.items():
        image.add_fp(BytesIO(content), len(content), _SHORT[name], rr_name=name, joliet_path=f"/{name}")
    image.write_fp(made)
    image.close()
    return made.getvalue()


def files_in(image: bytes) -> dict[str, bytes]:
    """Return the files of a seed in an image; none if it is no whole image. Raises MissingLibrary."""
    refuse_without_library()
    import pycdlib
    from pycdlib.pycdlibexception import PyCdlibException

    opened, files = pycdlib.PyCdlib(), {}
    try:
        opened.open_fp(BytesIO(image))
        for name in _SHORT:
            content = BytesIO()
            try:
                opened.get_file_from_iso_fp(content, joliet_path=f"/{name}")
            except PyCdlibException:
                continue
            files[name] = content.getvalue()
    except (PyCdlibException, struct.error, ValueError, IndexError):  # a half-written image may be anything
        return {}
    return files


def _content(path: str) -> bytes:
    try:
        return read_file(path, MOST_BYTES)
    except OSError as error:
        raise BadSpec(f"{path} cannot be read: {error.strerror}") from None
