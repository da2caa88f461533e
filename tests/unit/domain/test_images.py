"""Disk images that two domains use: the same file by any name, and backing images."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vfioctl.domain.document.other_domains import written_images
from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.probe.images import compared_images, refuse_shared_images
from vfioctl.errors import BadSpec
from vfioctl.kernel.disk_images import disk_image
from vfioctl.kernel.live.host import Live

KERNEL = Live(read_only=True)


def document(name: str, *disks: str) -> str:
    return f"<domain type='kvm'><name>{name}</name><devices>{''.join(disks)}</devices></domain>"


def domain(name: str, *disks: str) -> Domain:
    return read_domain(document(name, *disks))


def disk(path: Path | str, more: str = "", kind: str = "file") -> str:
    return f"<disk type='{kind}' device='disk'><source {'dev' if kind == 'block' else 'file'}='{path}'/>{more}</disk>"


def qcow2(path: Path, backing: str = "") -> Path:
    name = backing.encode()
    offset = (512 if name else 0).to_bytes(8)
    path.write_bytes((b"QFI\xfb\0\0\0\x03" + offset + len(name).to_bytes(4)).ljust(512, b"\0") + name)
    return path


def others(mine: str, theirs: str) -> tuple[tuple[str, str], ...]:
    """What a domain with the first disk shares with a domain `b` with the second one."""
    images = {image: "b" for _, image in written_images(domain("b", theirs))}
    return tuple(compared_images(KERNEL, domain("a", mine), images).shared.items())


def test_same_file_by_any_name(tmp_path: Path) -> None:
    image = qcow2(tmp_path / "a.qcow2")
    (tmp_path / "link").symlink_to(image)
    os.link(image, tmp_path / "hard")
    for name in (image, tmp_path / "link", tmp_path / "hard", tmp_path / ".." / tmp_path.name / "a.qcow2"):
        assert others(disk(image), disk(name)) == ((str(image), "is also a disk of b"),)
    assert others(disk(image), disk(qcow2(tmp_path / "b.qcow2"))) == ()
    assert others(disk("/nowhere/x"), disk("/nowhere//x")) == (("/nowhere/x", "is also a disk of b"),)


@pytest.mark.parametrize("more", ["<readonly/>", "<shareable/>", "<transient/>"])
def test_disk_that_does_not_write_alone_is_excepted(tmp_path: Path, more: str) -> None:
    image = qcow2(tmp_path / "a.qcow2")
    assert others(disk(image, more), disk(image)) == ()
    assert others(disk(image), disk(image, more)) == ()


@pytest.mark.parametrize("form", ["{}", "file:{}", "json"])
def test_backing_image_of_another_domain(tmp_path: Path, form: str) -> None:
    base = qcow2(tmp_path / "base.qcow2")
    name = "base.qcow2" if form != "json" else str(base)
    backing = f"json:{json.dumps({'driver': 'qcow2', 'file': {'filename': name}})}" if form == "json" else form
    middle = qcow2(tmp_path / "middle.qcow2", backing.format(name) if form != "json" else backing)
    top = qcow2(tmp_path / "top.qcow2", str(middle))
    assert others(disk(base), disk(top)) == ((str(base), "is the base of a disk of b"),)
    assert others(disk(top), disk(base)) == ((str(top), "is based on a disk of b"),)
    assert others(disk(top), disk(qcow2(tmp_path / "other.qcow2", "base.qcow2"))) == ()  # both only read it


def test_images_that_are_based_on_each_other(tmp_path: Path) -> None:
    qcow2(tmp_path / "a.qcow2", "b.qcow2")
    qcow2(tmp_path / "b.qcow2", "a.qcow2")
    assert others(disk(tmp_path / "a.qcow2"), disk(tmp_path / "b.qcow2"))


@pytest.mark.parametrize("header", [b"", b"QFI\xfb", b"QFI\xfb" + b"\xff" * 600, b"raw" * 200])
def test_damaged_header_names_no_backing_image(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a").write_bytes(header)
    assert disk_image(str(tmp_path / "a")).backing == ""


def test_image_that_cannot_be_read_is_the_same_file_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, most: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vfioctl.kernel.disk_images.read_start", refuse)
    image = qcow2(tmp_path / "a.qcow2", "base")
    (tmp_path / "link").symlink_to(image)
    assert others(disk(tmp_path / "link"), disk(image))
    assert disk_image(str(image)) == (f"file {image.stat().st_dev} {image.stat().st_ino}", "", "Permission denied")
    said = "the base of disk image {} is not known (Permission denied): other domains may write to it"
    other = {str(tmp_path / "link"): "domain b"}
    unread = compared_images(KERNEL, domain("a", disk(tmp_path / "c.qcow2")), other).unread
    assert unread == {str(tmp_path / "link"): said.format(tmp_path / "link")}, "also one of another domain"
    assert compared_images(KERNEL, domain("a", disk(image)), {}).unread == {}, "without others no base matters"


def test_image_that_cannot_be_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vfioctl.kernel.disk_images.os.stat", refuse)
    assert disk_image("/secret/a.qcow2").unknown == "Permission denied"


@pytest.mark.parametrize("place", [(600).to_bytes(8) + (20).to_bytes(4), (64).to_bytes(8) + (2000).to_bytes(4)])
def test_base_that_is_not_where_the_header_says(tmp_path: Path, place: bytes) -> None:
    (tmp_path / "a").write_bytes((b"QFI\xfb\0\0\0\x03" + place).ljust(512, b"\0"))
    assert disk_image(str(tmp_path / "a"))[1:] == ("", "its header is damaged")


def test_error_says_what_to_do(tmp_path: Path) -> None:
    image = qcow2(tmp_path / "a.qcow2")
    with pytest.raises(BadSpec, match=r"a\.qcow2 is also a disk of domain b") as caught:
        refuse_shared_images(KERNEL, domain("a", disk(image)), {str(image): "domain b"})
    assert "--disk" in caught.value.hint
