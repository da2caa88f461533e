"""Who a process belongs to, by its cgroup; what was handed to a guest, by its command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from vfioctl.inventory.probe.owners import (
    Membership,
    device_at,
    full_name,
    guest_name,
    is_vmm,
    membership,
    passthrough_names,
)
from vfioctl.inventory.probe.processes import Identity, Process, remedy
from vfioctl.kernel.open_nodes import OpenNode

ID = "0123456789ab" + "c" * 52
SHORT = ID[:12]
POD = "6c0e4f3a-2f0b-4d5c-9a51-0c1d2e3f4a5b"
POD_SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", {}),
        ("/init.scope", {"unit": "init.scope"}),
        ("/system.slice/nvidia-persistenced.service", {"unit": "nvidia-persistenced.service"}),
        ("/system.slice/system-getty.slice/getty@tty1.service", {"unit": "getty@tty1.service"}),
        ("/user.slice/user-1000.slice/session-2.scope", {"unit": "session-2.scope"}),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1.scope",
            {"unit": "user@1000.service", "user_unit": True},
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/session.slice/pipewire.service",
            {"unit": "user@1000.service", "user_unit": True},
        ),
        # Docker, under systemd and cgroupfs
        (f"/system.slice/docker-{ID}.scope", {"unit": f"docker-{ID}.scope", "container": f"docker/{SHORT}"}),
        (f"/docker/{ID}", {"container": f"docker/{SHORT}"}),
        (f"/docker/{ID}/init.scope", {"unit": "init.scope", "container": f"docker/{SHORT}"}),
        # Podman, of root and of a user, who could have chosen any name
        (f"/machine.slice/libpod-{ID}.scope", {"unit": f"libpod-{ID}.scope", "container": f"libpod/{SHORT}"}),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
            {"unit": "user@1000.service", "user_unit": True},
        ),
        (f"/libpod_parent/libpod-{ID}", {"container": f"libpod/{SHORT}"}),
        (f"/machine.slice/libpod-conmon-{ID}.scope", {"unit": f"libpod-conmon-{ID}.scope"}),
        # Kubernetes
        (
            f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{ID}.scope",
            {"unit": f"cri-containerd-{ID}.scope", "container": f"cri-containerd/{SHORT}", "pod": POD},
        ),
        (
            f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-{ID}.scope",
            {"unit": f"crio-{ID}.scope", "container": f"crio/{SHORT}", "pod": POD},
        ),
        (f"/kubepods/besteffort/pod{POD}/{ID}", {"container": f"cri/{SHORT}", "pod": POD}),
        (f"/kubepods/pod{POD.replace('-', '')}/{ID}", {"container": f"cri/{SHORT}", "pod": POD.replace("-", "")}),
        (
            f"/system.slice/containerd.service/{POD_SLICE}:cri-containerd:{ID}",
            {"unit": "containerd.service", "container": f"cri-containerd/{SHORT}", "pod": POD},
        ),
        (f"/docker/{ID}/kubepods/burstable/pod{POD}/{'d' * 64}", {"container": f"docker/{SHORT}", "pod": POD}),
        # LXC, LXD, Proxmox, nspawn, Kata
        ("/lxc.payload.web", {"container": "lxc/web"}),
        ("/lxc.payload.web/system.slice/nginx.service", {"unit": "nginx.service", "container": "lxc/web"}),
        ("/lxc/101/ns/system.slice/cron.service", {"unit": "cron.service", "container": "lxc/101"}),
        ("/lxc.monitor.web", {}),
        (
            "/machine.slice/machine-build\\x2dbox.scope",
            {"unit": "machine-build\\x2dbox.scope", "container": "machine/build-box"},
        ),
        (f"/kata_overhead/{ID}", {"container": f"kata/{SHORT}"}),
        (f"/kubepods/pod{POD}/kata_{ID}", {"container": f"kata/{SHORT}", "pod": POD}),
        # libvirt
        (
            "/machine.slice/machine-qemu\\x2d3\\x2dwin\\x2d11.scope/libvirt/emulator",
            {"unit": "machine-qemu\\x2d3\\x2dwin\\x2d11.scope", "guest": "win-11"},
        ),
        ("/machine.slice/machine-qemu\\x2d12\\x2dx.scope", {"unit": "machine-qemu\\x2d12\\x2dx.scope", "guest": "x"}),
    ],
)
def test_memberships(path: str, expected: dict[str, object]) -> None:
    assert membership(f"0::{path}") == Membership(**expected)  # type: ignore[arg-type] # each is of its field's type


def test_version_1_tells_it_in_any_of_its_hierarchies() -> None:
    lines = ["12:devices:/system.slice/docker.service", f"5:memory:/docker/{ID}", "1:name=systemd:/x.scope", "0::/"]
    assert membership("\n".join(lines)) == Membership(unit="docker.service", container=f"docker/{SHORT}")


@unhurried
@given(st.text() | st.lists(st.text(alphabet="0:/-.\\x2dabcmachinelxcqemuscopservi" + ID)).map("/".join))
def test_whatever_it_says_is_no_error(text: str) -> None:
    found = membership(f"0::/{text}")
    assert found.container is None or "/" in found.container


# -- guests ---------------------------------------------------------------------------------------------

MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-device", "vfio-pci,host=0000:01:00.0,id=hostdev0"], ["0000:01:00.0"]),
        (["-device", "vfio-pci,id=x,host=01:00.1"], ["0000:01:00.1"]),
        (["-device", "vfio-pci,host=1:0.0"], ["0000:01:00.0"]),
        (["-device", "vfio-pci,host=10000:E1:00.0"], ["10000:e1:00.0"]),
        (["-device", '{"driver":"vfio-pci","host":"0000:01:00.0","id":"hostdev0","bus":"pci.4"}'], ["0000:01:00.0"]),
        (["-device", '{"driver": "vfio-pci", "host": "0000:01:00.0"}'], ["0000:01:00.0"]),
        (["-device", "vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:01:00.0,addr=0x5"], ["0000:01:00.0"]),
        (["-device", "vfio-pci,sysfsdev=/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"], ["0000:01:00.0"]),
        (["-device", f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MDEV}"], [MDEV]),
        (["-device", f'{{"driver":"vfio-pci","sysfsdev":"/sys/bus/mdev/devices/{MDEV}"}}'], [MDEV]),
        (["-device", f"vfio-pci,sysfsdev=/sys/devices/pci0000:00/0000:00:02.0/{MDEV}"], [MDEV]),
        (["--device", "path=/sys/bus/pci/devices/0000:01:00.0/"], ["0000:01:00.0"]),
        (
            ["--device", "path=/sys/bus/pci/devices/0000:01:00.0/,iommu=on", "path=/sys/bus/pci/devices/0000:02:00.0"],
            ["0000:01:00.0", "0000:02:00.0"],
        ),
        (["--vfio", "/sys/bus/pci/devices/0000:01:00.0,iommu=viommu"], ["0000:01:00.0"]),
        (["-device", "vfio-pci,host=01:00.0", "-device", "vfio-pci,host=0000:01:00.0"], ["0000:01:00.0"]),
        (["-netdev", "socket,host=10.0.0.1", "-device", "usb-host,hostbus=1,hostaddr=2", "-smp", "4"], []),
        (["-device", "vfio-pci,host=0000:01:00.9", "-name", "host=01:00", "-m", "1024:1.5"], []),
        (["-drive", "file=/sys/bus/pci/devices/0000:01:00.0/rom"], []),
    ],
)
def test_what_was_handed_over(arguments: list[str], expected: list[str]) -> None:
    assert passthrough_names("\0".join(["/usr/bin/qemu-system-x86_64", *arguments, ""])) == expected


@unhurried
@given(st.text() | st.lists(st.sampled_from(["host=", "1:0.0", "/sys/", "0000:", ":", "\0", '"', MDEV])).map("".join))
def test_any_command_line_can_be_read(text: str) -> None:
    assert all(name == full_name(name) for name in passthrough_names(text))
    guest_name(text)


@unhurried
@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_an_address_is_written_in_full(domain: int, bus: int, device: int, function: int) -> None:
    assert full_name(f"{domain:X}:{bus:x}:{device:X}.{function}") == f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-name", "guest=win11,debug-threads=on"], "win11"),
        (["-name", "debug-threads=on,guest=a,,b"], "a,b"),
        (["-name", "plain"], "plain"),
        (["-name", "101,debug-threads=on"], "101"),
        (["-name", '{"guest":"json"}'], "json"),
        (["-name", "{broken"], None),
        (["-name", "process=x"], None),
        (["--name", "cloud"], "cloud"),
        (["-name"], None),
        ([], None),
    ],
)
def test_a_guests_name(arguments: list[str], expected: str | None) -> None:
    assert guest_name("\0".join(["qemu", *arguments])) == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/sys/devices/pci0000:e0/0000:e0:01.1/0000:e8:00.0", "0000:e8:00.0"),
        (f"/sys/devices/pci0000:00/0000:00:02.0/{MDEV}", MDEV),
        ("/sys/devices/platform/x", ""),
        ("", ""),
    ],
)
def test_the_device_that_a_path_ends_with(path: str, name: str) -> None:
    assert device_at(path) == name


def test_which_programs_are_vmms() -> None:
    yes = ("qemu-system-x86", "qemu-kvm", "kvm", "cloud-hyperviso", "crosvm", "firecracker")
    assert all(map(is_vmm, yes))
    assert not any(map(is_vmm, ("python3", "libvirtd", "virtqemud", "bash", "")))


# -- what ends it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("belongs", "expected"),
    [
        (Membership(guest="win11", unit="x.scope"), "virsh shutdown win11"),
        (Membership(container=f"docker/{SHORT}"), f"docker stop {SHORT}"),
        (Membership(container=f"libpod/{SHORT}"), f"podman stop {SHORT}"),
        (Membership(container="lxc/web", unit="nginx.service"), "lxc-stop --name web"),
        (Membership(container=f"crio/{SHORT}"), f"crictl stop {SHORT}"),
        (Membership(container=f"crio/{SHORT}", pod=POD), "delete the pod, or let it go to another node"),
        (Membership(unit="a.service"), "systemctl stop a.service"),
        (Membership(unit="seatd.service"), "log out the session that it has it open for: loginctl list-sessions"),
        (Membership(unit="user@7.service", user_unit=True), "end it: kill 7"),
        (Membership(guest="x;reboot"), "virsh shutdown 'x;reboot'"),
        (Membership(container="lxc/a b"), "lxc-stop --name 'a b'"),
        (Membership(container="machine/$(reboot)"), "machinectl poweroff '$(reboot)'"),
        (Membership(unit="a\\x2db.service"), "systemctl stop 'a\\x2db.service'"),
        (Membership(unit="session-1.scope"), "end it: kill 7"),
        (Membership(), "end it: kill 7"),
    ],
)
def test_what_ends_a_process(belongs: Membership, expected: str) -> None:
    process = Process("7", "x", (OpenNode("open", "/dev/x", "c 1:7", ""),))
    assert remedy(process, Identity("x", "root", belongs, None)) == expected


def test_init_is_never_to_be_killed() -> None:
    process = Process("1", "systemd", (OpenNode("open", "/dev/x", "c 1:7", ""),))
    who = Identity("systemd", "root", Membership(unit="init.scope"), None)
    assert remedy(process, who) == "it is init: only a reboot ends it"


def test_what_ends_a_guest_that_nobody_manages() -> None:
    process = Process("7", "qemu-system-x86", (), ("0000:01:00.0",), is_vmm=True)
    assert remedy(process, Identity("qemu", "root", Membership(unit="session-1.scope"), "x")) == "shut the guest down"
