"""The Debian package in a view of this machine's root file system: installed, upgraded, removed, purged, file by file.

A chroot instead of a machine that boots: dpkg unpacks 2,000 files, which takes minutes in an emulated one."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.outside.overlay import Overlay, overlay
from tests.lab.packages.conftest import EARLIER, ROOT, Built
from vfioctl import __version__

OF_DPKG = re.compile(r"/var/(lib/dpkg|log|cache/(man|debconf|ldconfig))(/.*)?|/etc/ld\.so\.cache")
"""What dpkg and its triggers leave for themselves."""
WANTS = "/etc/systemd/system"
EARLY = f"{WANTS}/sysinit.target.wants/vfioctl-early.service"
RESTORE = f"{WANTS}/multi-user.target.wants/vfioctl-restore.service"
HOOK = "/etc/libvirt/hooks/qemu.d/vfioctl"
RULE = "/etc/udev/rules.d/61-vfioctl-0000:41:00.0.rules"
KEPT = {
    "/etc/vfioctl/config.toml": "",
    "/etc/vfioctl/devices.d/0000:41:00.0.toml": 'driver = "vfio-pci"\n',
    "/etc/vfioctl/vgpu.d/0000:41:00.0.json": "{}\n",
    RULE: "# of a device\n",
}
"""Configuration and definitions, whose text the package must not change."""
LEDGER = "/var/lib/vfioctl/ledger.db"
RENEWS = "/usr/sbin/update-initramfs"
"""A stand-in for it tells that it was called: the real one takes half a minute."""
MAKE_LEDGER = f"""
mkdir -p -m 0700 /var/lib/vfioctl
cp /opt/vfioctl/lib/python3.11/site-packages/vfioctl/hosts/hgx8.host /run/hgx8.host
vfioctl --simulate /run/hgx8.host --ledger {LEDGER} bind gpu1 --yes
"""
HISTORY = f"vfioctl --simulate /run/hgx8.host --ledger {LEDGER} history"


@pytest.fixture
def view(tmp_path: Path, built: Built) -> Iterator[Overlay]:
    if os.geteuid() != 0 and "CI" not in os.environ:
        pytest.skip("needs root, to mount a view of the root file system")
    with overlay(tmp_path) as view:
        for package in (built.deb, built.earlier):
            (view.root / "tmp" / package.name).write_bytes(package.read_bytes())
        (view.root / RENEWS[1:]).write_text('#!/bin/sh\necho "renews $*"\n')
        yield view


def left(view: Overlay) -> set[str]:
    return {path for path in view.changed() if not OF_DPKG.fullmatch(path)} - {RENEWS}


def test_from_an_earlier_version_to_nothing(view: Overlay, built: Built) -> None:
    assert left(view) == set()
    assert "renews" not in view.says(f"dpkg --install /tmp/{built.earlier.name}"), "nothing is persistent"
    assert view.says("vfioctl --version") == f"vfioctl {EARLIER}\n"
    assert "9 GPUs" in view.says("vfioctl inventory --simulate hgx8")
    assert {EARLY, RESTORE, "/usr/share/man/man1/vfioctl-retired.1.gz"} <= left(view)
    for path, text in KEPT.items():
        (view.root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (view.root / path[1:]).write_text(text)
    view.says(MAKE_LEDGER)
    view.says("vfioctl hook install --yes")
    history = view.says(HISTORY)
    assert "bind 0000:43:00.0" in history
    assert "test -x /opt/vfioctl/bin/vfioctl" in (view.root / HOOK[1:]).read_text()
    (view.root / EARLY[1:]).unlink()  # as systemctl disable

    upgraded = view.run(f"dpkg --install /tmp/{built.deb.name}")
    assert upgraded.returncode == 0, upgraded.stderr
    assert "warning" not in upgraded.stderr, "a directory was not empty"
    assert "renews -u -k all\n" in upgraded.stdout
    assert view.says("vfioctl --version") == f"vfioctl {__version__}\n"
    assert [path for path in left(view) if "retired" in path] == []
    assert view.says(HISTORY) == history
    assert {path: (view.root / path[1:]).read_text() for path in KEPT} == KEPT
    assert EARLY not in left(view), "it was disabled"
    assert RESTORE in left(view)
    assert "TimeoutStartSec=10\n" in (view.root / "usr/lib/systemd/system/vfioctl-early.service").read_text()

    assert "renews -u -k all\n" in view.says("dpkg --remove vfioctl")
    kept = {*KEPT, LEDGER, HOOK}
    assert kept <= left(view)
    beyond = {path for path in left(view) - kept if not any(file.startswith(f"{path}/") for file in kept)}
    assert [path for path in beyond if path.startswith(("/opt", "/usr"))] == []

    view.says(f"dpkg --install /tmp/{built.deb.name}")
    assert view.says(HISTORY) == history
    (view.root / "etc/vfioctl/notes").write_text("of the administrator")
    purged = view.run("dpkg --purge vfioctl")
    assert purged.returncode == 0, purged.stderr
    assert "it has files that vfioctl did not write" in purged.stderr
    # libvirt's directory for hooks is not the package's
    folders = {"/etc/libvirt", "/etc/libvirt/hooks", "/etc/libvirt/hooks/qemu.d"}
    assert left(view) - folders == {"/etc/vfioctl", "/etc/vfioctl/notes"}


def test_fresh_and_purged(view: Overlay, built: Built) -> None:
    view.says(f"dpkg --install /tmp/{built.deb.name}")
    _parts_are_where_they_are_looked_for(view)
    _vfioctl_install_leaves_it_to_the_package(view)
    view.says(MAKE_LEDGER)
    view.says("vfioctl inventory --simulate hgx8; vfioctl man bind")
    view.says("dpkg --purge vfioctl")
    assert left(view) == set()


def _parts_are_where_they_are_looked_for(view: Overlay) -> None:
    assert view.says("man -w vfioctl-bind").strip() == "/usr/share/man/man1/vfioctl-bind.1.gz"
    line = "source /usr/share/bash-completion/completions/vfioctl; complete -p vfioctl"
    assert "_vfioctl_completion" in view.says(f"bash -c '{line}'")
    verified = view.run("systemd-analyze verify vfioctl-early.service vfioctl-restore.service")
    assert "vfioctl" not in verified.stderr, verified.stderr
    assert view.says("find /opt/vfioctl /usr/bin/vfioctl ! -user root -o ! -group root -o ! -type l -perm /022") == ""
    assert view.says("dpkg --verify vfioctl") == ""
    # its Python libraries are its own, and those of nobody else
    line = "import sys, typer, yaml, pycdlib, textual, pynvml; print(*sys.path)"
    places = view.says(f"PYTHONPATH=/tmp /opt/vfioctl/bin/python3 -I -c '{line}'").split()
    assert [place for place in places if place.startswith(("/usr/lib/python3/", "/tmp"))] == []
    libvirt = view.says("readlink /opt/vfioctl/lib/python3.11/site-packages/libvirt.py").strip()
    assert libvirt == "/usr/lib/python3/dist-packages/libvirt.py"


def _vfioctl_install_leaves_it_to_the_package(view: Overlay) -> None:
    before = left(view)
    said = " ".join(view.says("vfioctl install --yes").split())
    assert said.startswith("Nothing to do")
    assert "the package vfioctl of this system has installed" in said
    assert "apt-get removes it" in " ".join(view.says("vfioctl uninstall --yes").split())
    assert {path for path in left(view) - before if not path.startswith("/var/lib/vfioctl")} == set()


def test_an_environment_of_pip_is_not_mixed_with_it(view: Overlay, built: Built) -> None:
    view.says("mkdir -p /opt/vfioctl && touch /opt/vfioctl/pyvenv.cfg")
    done = view.run(f"dpkg --install /tmp/{built.deb.name}")
    assert done.returncode != 0
    assert "/opt/vfioctl has an installation by pip" in done.stderr
    assert left(view) == {"/opt/vfioctl", "/opt/vfioctl/pyvenv.cfg"}


def test_the_same_inputs_give_the_same_package(built: Built, tmp_path: Path) -> None:
    """Wherever they are."""
    wheel = Path(shutil.copy(built.wheel, tmp_path))
    words = ["packaging/deb/build.py", str(wheel), str(built.wheels), str(tmp_path), "--compress", "gzip"]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    (again,) = tmp_path.glob("*.deb")
    assert again.read_bytes() == built.deb.read_bytes()


def test_lintian_finds_only_what_is_explained(built: Built) -> None:
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", "--display-level", ">=warning", str(built.deb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
