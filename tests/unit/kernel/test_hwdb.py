"""Names of devices: udev's database where there is one, else pci.ids, else none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from vfioctl.kernel.live import hwdb
from vfioctl.kernel.live.host import Live


def nothing() -> None:
    pass


PCI_IDS = """\
#
#\tList of PCI ID's

10de  NVIDIA Corporation
\t1eb8  TU104GL [Tesla T4]
# a comment amid the devices of a vendor
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  H100 in an HGX baseboard

\t# and an indented one
\t\t10de 16c2  Another
\t2331  GH100 [H100 PCIe]
1234  Technical Corp.
\t2330  Not that one
8086  Intel Corporation
C 03  Display controller
\t00  VGA compatible controller
\t\t00  VGA controller
\t\t01  8514 controller
\t02  3D controller
# List end
C 06  Bridge
\t04  PCI bridge"""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pci.ids of our own, and no udev."""
    file = tmp_path / "pci.ids"
    file.write_text(PCI_IDS)
    monkeypatch.setattr(hwdb, "PCI_IDS", (tmp_path / "none.ids", file))
    monkeypatch.setattr(hwdb, "_udev", lambda _: None)
    return file


def short(names: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix("ID_").removesuffix("_FROM_DATABASE"): name for key, name in names.items()}


H100 = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"


class TestPciIds:
    @pytest.mark.usefixtures("database")
    def test_everything_known_has_its_name(self) -> None:
        assert short(hwdb.hardware_database(nothing)(H100)) == {
            "VENDOR": "NVIDIA Corporation",
            "MODEL": "GH100 [H100 SXM5 80GB]",
            "PCI_SUBSYS": "H100 in an HGX baseboard",
            "PCI_CLASS": "Display controller",
            "PCI_SUBCLASS": "3D controller",
        }

    @pytest.mark.usefixtures("database")
    @pytest.mark.parametrize(
        ("old", "new", "key", "name"),
        [
            ("00002330", "00001EB8", "MODEL", "TU104GL [Tesla T4]"),
            ("00002330", "00002331", "MODEL", "GH100 [H100 PCIe]"),
            ("00002330", "00002331", "PCI_SUBSYS", None),
            ("000016C1", "000016C2", "PCI_SUBSYS", "Another"),
            ("000016C1", "000016C3", "PCI_SUBSYS", None),
            ("v000010DEd", "v00001234d", "MODEL", "Not that one"),
            ("v000010DEd", "v00001234d", "PCI_SUBSYS", None),
            ("v000010DEd", "v00008086d", "VENDOR", "Intel Corporation"),
            ("v000010DEd", "v00008086d", "MODEL", None),
            ("v000010DEd", "v0000FFFFd", "VENDOR", None),
            ("bc03sc02i00", "bc03sc00i01", "PCI_INTERFACE", "8514 controller"),
            ("bc03sc02i00", "bc03sc02i01", "PCI_INTERFACE", None),
            ("bc03sc02i00", "bc06sc04i00", "PCI_SUBCLASS", "PCI bridge"),
            ("bc03sc02i00", "bcFFsc00i00", "PCI_CLASS", None),
        ],
    )
    def test_each_has_the_name_of_its_own_section(self, old: str, new: str, key: str, name: str | None) -> None:
        assert short(hwdb.hardware_database(nothing)(H100.replace(old, new))).get(key) == name

    @pytest.mark.usefixtures("database")
    @pytest.mark.parametrize("text", ["", "usb:v1D6Bp0002", "pci:v000010DE", "pci:v0001\n0DEd00002330"])
    def test_what_is_no_pci_modalias_has_no_name(self, text: str) -> None:
        assert hwdb.hardware_database(nothing)(text) == {}

    def test_a_file_that_is_not_utf_8_is_read(self, database: Path) -> None:
        database.write_bytes(b"# caf\xe9\n10de  NVIDIA\xff\n")
        assert short(hwdb.hardware_database(nothing)(H100)) == {"VENDOR": "NVIDIA\ufffd"}

    def test_without_any_database_nothing_has_a_name(self, database: Path) -> None:
        database.unlink()
        assert hwdb.hardware_database(nothing)(H100) == {}


class Library:
    """What of libudev is used, with one device in its database."""

    def udev_hwdb_new(self, _context: object) -> int:
        return 1

    def udev_hwdb_get_properties_list_entry(self, database: int, text: bytes, flags: int) -> list[tuple[bytes, bytes]]:
        assert (database, flags) == (1, 0)
        known = [(b"ID_VENDOR_FROM_DATABASE", b"NVIDIA \xff"), (b"ID_MODEL_FROM_DATABASE", b"H100")]
        return known if text == H100.encode() else []

    def udev_list_entry_get_name(self, entry: list[tuple[bytes, bytes]]) -> bytes:
        return entry[0][0]

    def udev_list_entry_get_value(self, entry: list[tuple[bytes, bytes]]) -> bytes:
        return entry[0][1]

    def udev_list_entry_get_next(self, entry: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return entry[1:]


class TestUdev:
    def use(self, monkeypatch: pytest.MonkeyPatch, library: object) -> None:
        module = ModuleType("pyudev")
        monkeypatch.setattr(module, "Context", lambda: SimpleNamespace(_libudev=library), raising=False)
        monkeypatch.setitem(sys.modules, "pyudev", module)
        monkeypatch.setattr(hwdb, "PCI_IDS", ())

    def test_is_asked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.use(monkeypatch, Library())
        assert short(Live().properties(H100)) == {"VENDOR": "NVIDIA \ufffd", "MODEL": "H100"}
        assert Live().properties(H100 + "x") == {}

    def test_without_its_database_pci_ids_is_asked(self, monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
        monkeypatch.undo()
        self.use(monkeypatch, SimpleNamespace(udev_hwdb_new=lambda _: None))
        monkeypatch.setattr(hwdb, "PCI_IDS", (database,))
        assert short(hwdb.hardware_database(nothing)(H100))["MODEL"] == "GH100 [H100 SXM5 80GB]"

    def test_an_old_library_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.use(monkeypatch, SimpleNamespace())
        assert hwdb.hardware_database(nothing)(H100) == {}

    def test_no_library_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.use(monkeypatch, Library())
        monkeypatch.setitem(sys.modules, "pyudev", None)
        assert hwdb.hardware_database(nothing)(H100) == {}

    def test_no_process_is_started_for_its_library(self) -> None:
        """ctypes asks ldconfig for a library by its name; a worker in a throttled control group waited for that."""
        program = (
            "import subprocess\nfrom vfioctl.kernel.live import hwdb\n"
            "subprocess.Popen.__init__ = None\n"
            f"print(hwdb._udev(lambda: None)('{H100}')['ID_VENDOR_FROM_DATABASE'])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.stdout == "NVIDIA Corporation\n", done.stderr


def test_progress_is_reported_while_pyudev_is_imported() -> None:
    """In a process of its own, which has not imported it before."""
    program = (
        "import sys; from vfioctl.kernel.live import hwdb; moments, finders = [], [*sys.meta_path]\n"
        "hwdb.hardware_database(lambda: moments.append(len(sys.modules)))\n"
        "print('pyudev' in sys.modules, max(b - a for a, b in zip(moments, moments[1:])), sys.meta_path == finders)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    imported, most, as_before = shown.split()
    assert (imported, as_before) == ("True", "True")
    assert int(most) <= 3, "modules without a report"
