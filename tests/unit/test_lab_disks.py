"""The disks of the lab, which machines of several processes read at once."""

import fcntl
import shutil
from pathlib import Path

import pytest

from tests.lab.outside import disks


def test_one_process_at_a_time_makes_them(tmp_path: Path) -> None:
    with disks.making(tmp_path), (tmp_path / "making").open() as of_another, pytest.raises(BlockingIOError):
        fcntl.flock(of_another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "making").open() as later:
        fcntl.flock(later, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.skipif(not shutil.which("mksquashfs"), reason="needs squashfs-tools")
def test_a_disk_that_a_machine_reads_stays_as_it_is(tmp_path: Path) -> None:
    repo, disk = tmp_path / "repo", tmp_path / "sources.squashfs"
    repo.mkdir()
    (repo / "file").write_text("one")
    disks.sources_disk(disk, repo, [])
    with disk.open("rb") as machine:
        before = disk.read_bytes()
        (repo / "file").write_text("two" * 100)
        disks.sources_disk(disk, repo, [])
        assert machine.read() == before
    assert disk.read_bytes() != before
    assert {path.name for path in tmp_path.iterdir()} == {"repo", "sources.squashfs"}
