"""Whole commands beside busy loops: the same answers and exit codes as on an idle machine."""

from pathlib import Path

from tests.contract.test_busy import beside_busy_loops
from tests.lab.inside import pci
from tests.lab.inside.command import Answer, vfioctl
from tests.lab.inside.conftest import Hold
from tests.lab.inside.topology import Topology


def test_commands_give_the_same_answers(tmp_path: Path, lab: Topology, hold: Hold) -> None:
    ledger = tmp_path / "ledger.db"
    assert vfioctl(ledger, "bind", lab.far_display, "--yes").returncode == 0
    holder = hold(lab.far_display)

    def answers() -> list[Answer]:
        return [vfioctl(ledger, "inventory", "--all", "--json"), vfioctl(ledger, "unbind", lab.far_display, "--yes")]

    idle = answers()
    with beside_busy_loops():
        assert answers() == idle
        bound = vfioctl(ledger, "bind", lab.display, "--yes")
    assert [answer.returncode for answer in idle] == [0, 4]
    assert f"process {holder.pid}" in idle[1].stderr
    assert bound.returncode == 0, bound.stderr
    assert {pci.driver_of(address) for address in lab.card} == {"vfio-pci"}
