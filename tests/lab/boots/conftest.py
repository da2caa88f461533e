"""A machine that has bound its first card persistently, once for all tests that boot it with what it has then."""

import pytest

from tests.lab.boots.test_persistent import CARD, FIRST, TWIN
from tests.lab.outside.systemd_machine import RESULTS, SystemdMachine

PARTS = (
    "/etc/vfioctl /etc/udev/rules.d /etc/initramfs-tools /usr/lib/vfioctl $(ls -d /usr/lib/dracut/modules.d/90vfioctl)"
)
LEAVES = f"{FIRST}\ntar --create --file={RESULTS}/archive.tar {PARTS}\n"


@pytest.fixture(scope="session")
def first_boot(tmp_path_factory: pytest.TempPathFactory) -> tuple[SystemdMachine, bytes]:
    """The machine, and a tar archive of what vfioctl has written there."""
    made = SystemdMachine(tmp_path_factory.mktemp("boots") / "machine")
    first = made.boot((*CARD, *TWIN), LEAVES, keep=True)
    assert first.status == 0, first
    assert "0000:01:00.0.toml" in first.output
    assert "61-vfioctl-0000:01:00.1.rules" in first.output
    return made, made.left("archive.tar")


@pytest.fixture
def machine(first_boot: tuple[SystemdMachine, bytes]) -> SystemdMachine:
    return first_boot[0]
