"""Plans the volumes of domains: disk images and cloud-init seeds, in libvirt's storage pools. Creates nothing. Refuses
disks that two would write, and files that cloud-init would do without: only a log in the guest would say so. Source:
https://cloudinit.readthedocs.io/en/latest/explanation/format.html"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from os.path import dirname
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.core.change import Change
from vfioctl.domain.document.other_domains import image_path, understood, written_images
from vfioctl.domain.model.definition import IMAGE, SEED, Image, Seed, Storage, seed_name, volume_name, volume_subject
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.domain.probe.images import ImageFiles, Writers, files_of
from vfioctl.domain.resources.libvirt import is_image, words_of
from vfioctl.errors import BadSpec, Foreign, StalePlan
from vfioctl.kernel.disk_images import NETWORK, USER, digest_of, refuse_without_library, seed_files
from vfioctl.kernel.libvirt.storage import image_text
from vfioctl.kernel.protocol import DiskImages, Reader
from vfioctl.untrusted_text import kind_of_yaml

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetDomain

_OF_FILES = ("dir", "fs", "netfs")
"""The kinds of pools whose volumes are files."""
_CONFIG = "#cloud-config"
_WORDS = (
    *(_CONFIG, "#cloud-config-archive", "#cloud-config-jsonp", "#include", "#include-once"),
    *("#cloud-boothook", "#part-handler"),
)
"""First words of the first line of user-data."""
_BEGINNINGS = ("#!", "## template: jinja", "content-type:", "mime-version:", "from ")
_GZIP = b"\x1f\x8b"


class Provided(NamedTuple):
    """A domain's spec with the paths of its new volumes, and these volumes."""

    spec: DomainSpec
    storage: Storage | None


def provided(kernel: Reader, uri: str, domain: FleetDomain) -> Provided:
    """Return a domain's spec with its disk images, before its other disks, and its seed. Raises BadSpec, HostError."""
    spec = domain.spec
    if not (domain.images or domain.cloud_init):
        return Provided(spec, None)
    images = tuple(_named(image, spec.name, number) for number, image in enumerate(domain.images, 1))
    folder = _folder(kernel, uri, domain.pool, [image.base for image in images])
    seed = _seed(domain)
    spec = replace(spec, disks=(*(f"{folder}/{image.name}" for image in images), *spec.disks))
    name = ""
    if seed:
        name = seed_name(spec.name, seed.sha256)
        spec = replace(spec, seed=f"{folder}/{name}")
    return Provided(spec, Storage(pool=domain.pool, images=images, seed=seed, seed_name=name))


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
    settings = domain.cloud_init
    if settings is None:
        return None
    refuse_without_library()
    names = {"instance_id": settings.instance_id or domain.name, "hostname": settings.hostname or domain.name}
    files = seed_files(**names, user_data=settings.user_data, network_config=settings.network_config)
    refuse_user_data(settings.user_data, files[USER])
    if settings.network_config:
        refuse_network_config(settings.network_config, files[NETWORK])
    return Seed(**names, user_data=settings.user_data, network_config=settings.network_config, sha256=digest_of(files))


def planned_volumes(kernel: Reader, uri: str, storage: Storage) -> tuple[list[Change], tuple[str, ...]]:
    """Return the changes that create what is not there yet, the seed first; and notes on what is there already. Raises
    Foreign for an image that is not as asked for: none is ever changed; StalePlan if files have changed."""
    changes, notes = list(_seeds(kernel, uri, storage)), []
    for image in storage.images:
        wanted = image_text(image.size, image.base, image.base_format)
        current = kernel.ask_libvirt(uri, "volume", storage.pool, image.name)
        if not current:
            changes.append(_change(IMAGE, uri, storage.pool, image.name, "", wanted))
        elif is_image(current, wanted):
            notes.append(f"disk image {storage.pool}/{image.name} exists already and is used as it is")
        else:
            raise Foreign(
                f"disk image {storage.pool}/{image.name} exists, with {words_of(current)}; wanted: {words_of(wanted)}",
                hint="vfioctl changes no existing image: change the file, or use virsh vol-resize or vol-delete",
            )
    return changes, tuple(notes)


def _seeds(kernel: Reader, uri: str, storage: Storage) -> Iterator[Change]:
    seed = storage.seed
    if seed is None:
        return
    files = seed_files(seed.instance_id, seed.hostname, seed.user_data, seed.network_config)
    if digest_of(files) != seed.sha256:
        raise StalePlan(f"{seed.user_data} has changed", hint="make a new plan")
    current = kernel.ask_libvirt(uri, "seed", storage.pool, storage.seed_name)
    if current != seed.sha256:
        yield _change(SEED, uri, storage.pool, storage.seed_name, current, seed.canonical())


def _change(kind: str, uri: str, pool: str, volume: str, before: str, after: str) -> Change:
    name = volume_name(uri, pool, volume)
    return Change(kind=kind, name=name, subject=volume_subject(volume), before=before, after=after)


def written_by(texts: tuple[str, ...]) -> frozenset[str]:
    """Return what a domain with these documents may write to. One that is not understood writes to nothing known."""
    return frozenset(image for domain in understood(texts) for _, image in written_images(domain))


class _Disk(NamedTuple):
    """A disk of a domain of a fleet. `words`: what it is; `is_new`: it is made for the domain."""

    domain: str
    words: str
    files: ImageFiles
    is_new: bool


def refuse_shared(reader: DiskImages, fleet: Mapping[str, Provided], others: Mapping[str, frozenset[str]]) -> None:
    """Raise BadSpec for a disk of two domains of a fleet; Foreign if an image of one is a disk of another domain. The
    base of an image may be a disk of no domain at all, and no domain may have one disk twice. `others`: what libvirt's
    domains write to, by name; a domain of the fleet may be among them."""
    disks = [disk for name, domain in fleet.items() for disk in _disks(reader, name, domain)]
    stored = [domain for domain in fleet.values() if domain.storage and domain.storage.images]
    folders = {domain.storage.pool: dirname(domain.spec.disks[0]) for domain in stored if domain.storage}
    writers = Writers()
    for name, images in others.items():
        for image in images:
            pool, _, volume = image.partition(" ")
            writers.add(name, files_of(reader, f"{folders[pool]}/{volume}" if pool in folders else image))
    for disk in disks:
        writers.add(disk.domain, disk.files)
    for disk in disks:
        if [other.files.own for other in disks if other.domain == disk.domain].count(disk.files.own) > 1:
            hint = "name it once, or give an image another name"
            raise BadSpec(f"{disk.domain}: {disk.words} is there twice", hint=hint)
        for how, who in sorted(writers.sharing(disk.files, disk.domain), key=lambda shares: shares[1]):
            if disk.is_new or who in fleet:  # any other disk is compared when the domain is built
                raise (BadSpec if who in fleet else Foreign)(
                    f"{disk.domain}: {disk.words} {how} domain {who}",
                    hint="what both write destroys it: give one another disk, or the image another name or base",
                )


def _disks(reader: DiskImages, name: str, provided: Provided) -> Iterator[_Disk]:
    images = provided.storage.images if provided.storage else ()
    for path, image in zip_longest(provided.spec.disks, images):
        words = f"disk image {provided.storage.pool}/{image.name}" if provided.storage and image else f"disk {path}"
        files = files_of(reader, image_path(path), image_path(image.base) if image and image.base else "")
        yield _Disk(name, words, files, image is not None)


def refuse_user_data(path: str, content: bytes) -> None:
    """Raise BadSpec for user-data that cloud-init does not understand."""
    if content.startswith(_GZIP):
        return
    first = content.partition(b"\n")[0].decode(errors="replace").lower().rstrip()
    word = first.partition(" ")[0]
    if word == _CONFIG:
        _refuse_other_yaml(path, content, "mapping", "")
    elif word not in _WORDS and not first.startswith(_BEGINNINGS):
        hint = f"its first line is {_CONFIG}, or names a program: #!/bin/sh"
        raise BadSpec(f"{path} is nothing that cloud-init reads", hint=hint)


def refuse_network_config(path: str, content: bytes) -> None:
    """Raise BadSpec for a network configuration that cloud-init does not understand."""
    _refuse_other_yaml(path, content, "mapping")


def _refuse_other_yaml(path: str, content: bytes, *kinds: str) -> None:
    hint = "cloud-init reads settings in YAML there, one on each line: locale: C.UTF-8"
    try:
        kind = kind_of_yaml(content.decode())
    except ImportError:
        return  # without PyYAML it is for cloud-init to judge
    except ValueError as error:  # YAML and UTF-8 alike
        raise BadSpec(f"{path} is not understood: {error}"[:400], hint=hint) from None
    if kind not in kinds:
        raise BadSpec(f"{path} is no table of settings", hint=hint)
