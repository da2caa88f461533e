"""Plans the volumes of a domain: its disk images and its seed, in one of libvirt's storage pools. Creates nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.core.change import Change
from vfioctl.domain.define.cloud_init import refuse_network_config, refuse_user_data
from vfioctl.domain.model.storage import (
    IMAGE,
    SEED,
    Image,
    Seed,
    Storage,
    seed_name,
    volume_name,
    volume_subject,
)
from vfioctl.domain.resources.disk_image import is_image, words_of
from vfioctl.errors import BadSpec, Foreign, StalePlan
from vfioctl.kernel.libvirt_storage import image_text
from vfioctl.kernel.seed_image import NETWORK, USER, digest_of, refuse_without_library, seed_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfioctl.domain.model.fleet import FleetDomain
    from vfioctl.domain.model.spec import DomainSpec
    from vfioctl.kernel.protocol import Reader

_OF_FILES = ("dir", "fs", "netfs")
"""The kinds of pools whose volumes are files."""


class Provided(NamedTuple):
    """A domain's spec with the paths of its new volumes, and these volumes."""

    spec: DomainSpec
    storage: Storage | None


def provided(kernel: Reader, uri: str, domain: FleetDomain) -> Provided:
    """Return a domain's spec with its disk images, which come before its other disks, and its seed.

    Raises BadSpec for files, pools and bases that cannot be used; HostError if libvirt cannot be asked.
    """
    spec = domain.spec
    if not (domain.images or domain.cloud_init):
        return Provided(spec, None)
    images = tuple(_named(image, spec.name, number) for number, image in enumerate(domain.images, 1))
    folder = _folder(kernel, uri, domain.pool, [each.base for each in images])
    seed = _seed(domain)
    storage = Storage(
        pool=domain.pool, images=images, seed=seed, seed_name=seed_name(spec.name, seed.sha256) if seed else ""
    )
    given: dict[str, Any] = {"disks": (*(f"{folder}/{each.name}" for each in images), *spec.disks)}
    if seed:
        given["seed"] = f"{folder}/{storage.seed_name}"
    return Provided(replace(spec, **given), storage)


def _named(image: Image, domain: str, number: int) -> Image:
    name = image.name or (f"{domain}.qcow2" if number == 1 else f"{domain}-{number}.qcow2")
    return image.model_copy(update={"name": name})


def _folder(kernel: Reader, uri: str, pool: str, bases: list[str]) -> str:
    """Return the directory of a pool. Raises BadSpec for one without, and for a base that is not there."""
    folder = ""
    for base in bases or [""]:
        kind, folder, is_there = kernel.ask_libvirt(uri, "pool", pool, base)
        if kind not in _OF_FILES or not folder.startswith("/"):
            raise BadSpec(f"storage pool {pool} is of the kind {kind}: it has no files", hint="name another pool")
        if not is_there:
            raise BadSpec(f"there is no image {base}", hint="a base image must be there, and stay")
    return folder.rstrip("/")


def _seed(domain: FleetDomain) -> Seed | None:
    asked = domain.cloud_init
    if asked is None:
        return None
    refuse_without_library()
    names = {"instance_id": asked.instance_id or domain.name, "hostname": asked.hostname or domain.name}
    files = seed_files(**names, user_data=asked.user_data, network_config=asked.network_config)
    refuse_user_data(asked.user_data, files[USER])
    if asked.network_config:
        refuse_network_config(asked.network_config, files[NETWORK])
    return Seed(**names, user_data=asked.user_data, network_config=asked.network_config, sha256=digest_of(files))


# -- planning ----------------------------------------------------------------------------------------


def planned_volumes(kernel: Reader, uri: str, storage: Storage) -> tuple[list[Change], tuple[str, ...]]:
    """Return the changes that create what is not there yet, the seed first; and notes on what is there already.

    Raises Foreign for an image that is not as asked for: none is ever changed. StalePlan if files have changed.
    """
    changes, notes = list(_seeds(kernel, uri, storage)), []
    for image in storage.images:
        wanted = image_text(image.size, image.base, image.base_format)
        found = kernel.ask_libvirt(uri, "volume", storage.pool, image.name)
        if not found:
            changes.append(_change(IMAGE, uri, storage.pool, image.name, "", wanted))
        elif is_image(found, wanted):
            notes.append(f"disk image {storage.pool}/{image.name} is there already, and is used as it is")
        else:
            raise Foreign(
                f"disk image {storage.pool}/{image.name} is there, with {words_of(found)}; wanted: {words_of(wanted)}",
                hint="vfioctl never changes one: change the file, or virsh vol-resize, or virsh vol-delete",
            )
    return changes, tuple(notes)


def _seeds(kernel: Reader, uri: str, storage: Storage) -> Iterator[Change]:
    seed = storage.seed
    if seed is None:
        return
    files = seed_files(seed.instance_id, seed.hostname, seed.user_data, seed.network_config)
    if digest_of(files) != seed.sha256:
        raise StalePlan(f"{seed.user_data} has changed", hint="make a new plan")
    found = kernel.ask_libvirt(uri, "seed", storage.pool, storage.seed_name)
    if found != seed.sha256:
        yield _change(SEED, uri, storage.pool, storage.seed_name, found, seed.canonical())


def _change(kind: str, uri: str, pool: str, volume: str, before: str, after: str) -> Change:
    name = volume_name(uri, pool, volume)
    return Change(kind=kind, name=name, subject=volume_subject(volume), before=before, after=after)
