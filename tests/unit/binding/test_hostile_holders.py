"""Processes of ordinary users that hide from bind, unbind and reset, stand in their way, or break them."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosts.machines import copy, in_use, machine, put_process
from vfioctl.console.documents import document_text
from vfioctl.core.change import Plan
from vfioctl.errors import DeviceInUse
from vfioctl.host import Host
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.probe.owners import MOST_OF_A_COMMAND_LINE, device_at, guest_name, membership, passthrough_names
from vfioctl.kernel.recorded.tree import Tree

FREE, SHARED = "0000:04:00.0", "0000:02:00.0"
NOBODY, ROOT, QEMU = (f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" for uid in (65534, 0, 64055))
FORGED = f"qemu\0-name\0x;reboot\0-device\0vfio-pci,host={FREE}\0"
DEEP = "[" * 20_000 + "]" * 20_000


@pytest.fixture
def tree() -> Tree:
    """A host in use, as root sees it: no process is unreadable."""
    tree = copy(in_use())
    tree.remove("/proc/2210")
    tree.properties["user:65534"] = {"name": "nobody"}
    return tree


@pytest.fixture
def host(tree: Tree, tmp_path: Path) -> Host:
    return machine(tree, tmp_path / "x.db")


def hide(tree: Tree, pid: int = 4711, status: str = NOBODY, **texts: str) -> None:
    """A process of which one descriptor cannot be read."""
    put_process(tree, pid, "/dev/null", name=texts.pop("name", "odd"), status=status, cgroup="0::/", **texts)
    tree.put_refused(f"/proc/{pid}/fd/5", errno.EACCES)


class TestAProcessThatWasNotReadWhole:
    def test_refuses_a_bind_by_root_and_is_named_with_the_reason(self, tree: Tree, host: Host) -> None:
        host.binding.plan_bind([FREE])
        hide(tree)
        with pytest.raises(DeviceInUse) as caught:
            host.binding.plan_bind([FREE])
        assert caught.value.exit_code == 4
        assert "may be held by odd (process 4711, nobody)" in caught.value.message
        assert "its file descriptor 5 could not be read (EACCES)" in caught.value.message
        assert "kill 4711" in caught.value.hint
        assert "--force-holders" in caught.value.hint

    @pytest.mark.parametrize(
        "ask",
        [
            lambda host, **how: host.binding.plan_bind([FREE], **how),
            lambda host, **how: host.binding.plan_reset(FREE, **how),
        ],
    )
    def test_can_be_forced(self, tree: Tree, host: Host, ask: Callable[..., Plan]) -> None:
        hide(tree)
        with pytest.raises(DeviceInUse):
            ask(host)
        assert any("process 4711" in note for note in ask(host, force_holders=True).notes)

    def test_refuses_an_unbind(self, tree: Tree, host: Host) -> None:
        host.apply(host.binding.plan_bind([FREE]))
        hide(tree)
        with pytest.raises(DeviceInUse, match="process 4711"):
            host.binding.plan_unbind([FREE])
        host.apply(host.binding.plan_unbind([FREE], force_holders=True))

    def test_is_found_before_the_first_write_too(self, tree: Tree, host: Host) -> None:
        plan = host.binding.plan_bind([FREE])
        hide(tree)
        with pytest.raises(DeviceInUse, match="process 4711"):
            host.apply(plan)

    def test_is_a_note_where_the_reader_may_not_read_all(self, tree: Tree, host: Host) -> None:
        hide(tree)
        tree.put("/proc/2210/comm", "keyring")
        tree.put_refused("/proc/2210/fd", errno.EACCES)
        assert "2 processes could not be read, and may hold the devices too" in host.binding.plan_bind([FREE]).notes

    def test_that_is_known_to_hold_a_device_is_named_for_it_as_its_holder(self, tree: Tree, host: Host) -> None:
        hide(tree)
        tree.put_link("/proc/4711/fd/6", "/dev/nvidia2")
        kinds = {
            holder.kind for holder in host.holders([FREE]).holders if holder.pid == 4711 and holder.address == FREE
        }
        assert kinds == {HolderKind.PROCESS}


class TestACommandLine:
    @pytest.mark.parametrize("status", [NOBODY, "Uid:\t65534\t0\t0\t0", "Uid:\t0\t65534\t0\t0", ""])
    def test_of_an_arbitrary_user_says_nothing(self, tree: Tree, host: Host, status: str) -> None:
        hide(tree, status=status, name="qemu-x", cmdline=FORGED)
        tree.put_link("/proc/4711/fd/6", "/dev/kvm")
        found = [holder for holder in host.holders([FREE]).holders if holder.pid == 4711]
        assert {holder.kind for holder in found} == {HolderKind.UNREAD}
        assert {holder.guest for holder in found} == {None}

    @pytest.mark.parametrize("status", [ROOT, QEMU])
    def test_of_a_believed_user_names_its_devices_and_its_guest(self, tree: Tree, host: Host, status: str) -> None:
        hide(tree, status=status, name="qemu-x", cmdline=FORGED)
        (found,) = [holder for holder in host.holders([FREE]).holders if holder.how == "command line"]
        assert (found.address, found.guest) == (FREE, "x;reboot")

    @pytest.mark.parametrize(
        "name", [f'{{"guest":{DEEP}}}', '{"guest":"\\ud800"}', DEEP, "\ud800", '{"guest":' * 20_000]
    )
    def test_that_is_odd_costs_only_the_name(self, tree: Tree, host: Host, name: str) -> None:
        hide(tree, status=ROOT, name="qemu-x", cmdline=f"qemu\0-name\0{name}\0-device\0vfio-pci,host={FREE}\0")
        found = host.holders([FREE])
        assert [holder.pid for holder in found.holders if holder.how == "command line"] == [4711]
        document_text(found).encode()

    def test_that_is_long_and_hostile_is_searched_at_once(self) -> None:
        for text in (
            "/sys/" + "a/" * 60_000,
            "/sys/" * 24_000,
            "host=" * 24_000,
            "host" + " " * 120_000,
            ",/sys/a" * 17_000,
        ):
            began = time.monotonic()
            passthrough_names(text)
            device_at(text)
            guest_name(f"-name\0{text}")
            assert time.monotonic() - began < 1

    def test_is_read_up_to_a_size(self) -> None:
        assert passthrough_names(f"{' ' * MOST_OF_A_COMMAND_LINE}host=01:00.0") == []

    @settings(deadline=None, max_examples=30)
    @given(
        st.lists(
            st.sampled_from(["/sys/", "host", "host=", '"', " ", ":", "0", "01:00.0", "/", ",", "=", "a", "\0", "-"])
        ),
        st.integers(1000, 20_000),
    )
    def test_takes_time_in_proportion(self, parts: list[str], times: int) -> None:
        text = ("".join(parts) * times)[:MOST_OF_A_COMMAND_LINE]
        began = time.monotonic()
        passthrough_names(text)
        assert time.monotonic() - began < 2


class TestAnException:
    def test_of_one_process_costs_that_one(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host = machine(tree, tmp_path / "x.db")
        put_process(tree, 4711, "/dev/nvidia2", name="odd", status=NOBODY)
        genuine = type(host.session.kernel).open_nodes

        def broken(kernel: object, pid: str) -> object:
            if pid == "4711":
                raise RecursionError
            return genuine(kernel, pid)  # type: ignore[arg-type]

        monkeypatch.setattr(type(host.session.kernel), "open_nodes", broken)
        found = [holder for holder in host.holders([FREE]).holders if holder.pid == 4711]
        assert {holder.how for holder in found} == {"its open files could not be read (RecursionError)"}


class TestControlGroups:
    def test_that_a_user_can_name_are_not_believed(self) -> None:
        of_user = "/user.slice/user-1000.slice"
        for text in (
            f"0::{of_user}/user@1000.service/app.slice/machine-qemu\\x2d1\\x2dx.scope",
            f"0::{of_user}/user@1000.service/system.slice/nvidia-persistenced.service",
            f"0::{of_user}/user@1000.service/docker-{'a' * 64}.scope",
        ):
            found = membership(text)
            assert (found.unit, found.guest, found.container) == ("user@1000.service", None, None)
        found = membership(f"0::{of_user}/session-2.scope/machine-qemu\\x2d1\\x2dx.scope/pod{'a' * 32}")
        assert (found.unit, found.guest, found.pod) == ("session-2.scope", None, None)

    def test_are_believed_as_far_as_root_made_them(self) -> None:
        delegated = "/system.slice/theirs.service"
        text = f"0::{delegated}/machine-qemu\\x2d1\\x2dx.scope"
        assert membership(text).guest == "x"
        found = membership(text, lambda _, path: path[: len(delegated)])
        assert (found.unit, found.guest) == ("theirs.service", None)
        assert membership(text, lambda _, __: "").unit is None
