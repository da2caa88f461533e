"""A captured directory whose owner is hostile: what is outside is never read, whatever is replaced meanwhile."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import hostile
from tests.conftest import memory, no_descriptor_left_open
from vfioctl.console.documents import document_text
from vfioctl.errors import BadDocument, KernelRefused
from vfioctl.host import Host
from vfioctl.inventory.model.document import document_of
from vfioctl.kernel import paths as inside
from vfioctl.kernel.captured.host import Captured

SECONDS = 1.5
WITHOUT_OPENAT2 = (errno.ENOSYS, errno.EPERM)
MODALIAS = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs two users: root, and another who owns the capture")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may enter."""
    with memory() as folder:
        folder.chmod(0o755)
        yield folder


@pytest.fixture(
    params=[None, *WITHOUT_OPENAT2, errno.EAGAIN], ids=lambda number: errno.errorcode.get(number, "openat2")
)
def _however_it_is_opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With openat2, without it (an old kernel, a sandbox), and where renames elsewhere never let it finish."""
    if request.param:
        monkeypatch.setattr(inside, "openat2", _refusing(request.param))


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(KernelRefused) as caught:
        ask()
    return caught.value.symbol


def _refusing(number: int) -> Callable[..., int]:
    def openat2(_directory: int, _path: bytes, _flags: int, resolve: int) -> int:
        if number == errno.EAGAIN and not resolve & inside.RESOLVE_IN_ROOT:
            raise OSError(errno.ENOSYS, "")
        raise OSError(number, "")

    return openat2


@as_root
@pytest.mark.usefixtures("_however_it_is_opened")
def test_links_that_their_owner_replaces_lead_nowhere(place: Path) -> None:
    root = hostile.prepare(place)
    with hostile.flipping(root):
        assert hostile.leaks(Captured(str(root)), SECONDS) == {}


@as_root
def test_they_do_lead_out_for_a_reader_that_checks_a_name_and_then_opens_it(place: Path) -> None:
    """The exploit works, so that it proves something of the others."""
    root = hostile.prepare(place)
    until = time.monotonic() + 60
    with hostile.flipping(root):
        while time.monotonic() < until:
            with suppress(OSError):
                name = os.path.realpath(root / "sys/folder/file")
                if name.startswith(f"{root}/") and Path(name).read_text() == hostile.SECRET:
                    return
    pytest.fail("no read has left the root")


@as_root
def test_a_snapshot_and_a_listing_of_a_hostile_capture_hold_nothing_from_outside(place: Path) -> None:
    """The whole way, workers included."""
    root = hostile.prepare(place)
    device = "sys/bus/pci/devices/0000:01:00.0"
    (root / device).mkdir(parents=True)
    for name, text in {"modalias": MODALIAS, "numa_node": "0", "driver_override": "(null)"}.items():
        (root / device / name).write_text(f"{text}\n")
    (root / f"{device}/driver_override.link").symlink_to(place / "secret/file")
    (root / f"{device}.link").symlink_to(place / "secret")
    for each in (root / "sys/bus").rglob("*"):
        os.chown(each, hostile.NOBODY, hostile.NOBODY, follow_symlinks=False)
    host = Host.at(root)
    with hostile.flipping(root, (device, f"{device}/driver_override")):
        for _ in range(20):
            assert hostile.SECRET not in document_text(document_of(host.inventory(), everything=True))
            assert hostile.SECRET not in host.snapshot()[0]


@pytest.mark.usefixtures("_however_it_is_opened")
class TestInside:
    """The same answers, whichever way a path is opened."""

    @pytest.fixture
    def kernel(self, tmp_path: Path) -> Captured:
        (tmp_path / "secret").write_text("outside")
        home = tmp_path / "root"
        (home / "sys/folder").mkdir(parents=True)
        (home / "sys/file").write_text("inside")
        for name, target in {
            "to-file": "file",
            "to-root": "/",
            "by-root": "/sys/folder/../file",
            "up": "../../../../secret",
            "dangling": "none",
            "round": "round",
            "slash": "file/",
            "magic": f"/proc/self/fd/0/../../../../{tmp_path}/secret",
        }.items():
            (home / "sys" / name).symlink_to(target)
        (home / "sys/folder/self").symlink_to("..")
        return Captured(str(home))

    @pytest.mark.parametrize(
        "path",
        [
            "/sys/file",
            "/sys/to-file",
            "/sys/by-root",
            "/../../sys/file",
            "/sys/to-root/sys/file",
            "//sys/./folder/../file",
            "/sys/folder/self/folder/self/file",
        ],
    )
    def test_what_is_there_is_read(self, kernel: Captured, path: str) -> None:
        assert kernel.read(path) == "inside"
        assert kernel.has(path)

    @pytest.mark.parametrize(
        ("path", "symbol"),
        [
            ("/sys/up", "ENOENT"),
            ("/secret", "ENOENT"),
            ("/sys/none", "ENOENT"),
            ("/sys/none/../file", "ENOENT"),
            ("/sys/dangling", "ENOENT"),
            ("/sys/magic", "ENOENT"),
            ("/sys/round", "ELOOP"),
            ("/sys/file/", "ENOTDIR"),
            ("/sys/file/..", "ENOTDIR"),
            ("/sys/file/.", "ENOTDIR"),
            ("/sys/slash", "ENOTDIR"),
            ("/sys", "EISDIR"),
            ("/sys/to-root", "EISDIR"),
            ("/" + "x" * 256, "ENAMETOOLONG"),
            ("/x" * 2048, "ENAMETOOLONG"),
            ("/sys/\0", "EINVAL"),
            ("/sys/\ud800", "EILSEQ"),
        ],
    )
    def test_what_is_not_is_refused(self, kernel: Captured, path: str, symbol: str) -> None:
        assert refusal(lambda: kernel.read(path)) == symbol

    def test_a_link_is_read_as_it_is(self, kernel: Captured) -> None:
        assert kernel.link("/sys/folder/self") == ".."
        assert kernel.link("/sys/folder/self/up") == "../../../../secret"
        assert refusal(lambda: kernel.link("/sys/file")) == "EINVAL"

    def test_names_in_a_directory_are_its_own(self, kernel: Captured) -> None:
        assert kernel.children("/sys/to-root") == ["sys"]
        assert kernel.children("/..") == ["sys"]

    def test_no_descriptor_is_left_open(self, kernel: Captured) -> None:
        with no_descriptor_left_open():
            for path in ("/sys/file", "/sys/up", "/sys/round", "/sys/slash", "/sys/to-root/sys/file"):
                kernel.has(path)
                with suppress(KernelRefused):
                    kernel.read(path)


@pytest.mark.usefixtures("_however_it_is_opened")
def test_a_root_that_is_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root/sys").mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    with pytest.raises(OSError, match=r"levels|directory"):
        Captured(str(tmp_path / "link"))


def test_a_root_that_is_replaced_by_another_directory_is_not_read_by_workers(tmp_path: Path) -> None:
    (tmp_path / "root/sys").mkdir(parents=True)
    status = (tmp_path / "root").stat()
    (tmp_path / "root").rename(tmp_path / "before")
    for _ in range(2):
        worker = Captured(str(tmp_path / "root"), identity=(status.st_dev, status.st_ino))
        assert not worker.has("/sys")
        assert refusal(lambda worker=worker: worker.children("/sys")) == "ESTALE"  # type: ignore[misc] # bound at once
        (tmp_path / "root/sys").mkdir(parents=True, exist_ok=True)


def test_the_root_directory_of_this_machine_is_this_machine(tmp_path: Path) -> None:
    host = Host.at(Path("/"), tmp_path / "ledger.db")
    assert host.session.kernel.description == "this machine"
    assert host.session.kernel.read_only


def test_a_directory_without_sys_or_with_a_link_out_as_sys_holds_no_host(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/sys").symlink_to(tmp_path / "outside")
    with pytest.raises(BadDocument, match="holds no captured host"):
        Host.at(tmp_path / "root")
