"""CPUs that the host's scheduler leaves alone: for realtime guests first, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original
from tests.hosts.servers import Node, asking, server
from tests.unit.conftest import Run
from vfioctl.errors import NoCapacity
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import form
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.place import place
from vfioctl.placement.probe.topology import CPUS, read_isolated


def host(isolated: set[int], *, realtime: bool = False) -> Capacity:
    """A node of eight cores with two threads each: 0,8 and 1,9 and so on."""
    capacity = server([Node(bridges=((1,),), caches=(8,))])
    topology = replace(capacity.topology, isolated=frozenset(isolated))
    return replace(capacity, topology=topology, realtime=realtime)


def test_realtime_gets_them_and_nothing_else_does() -> None:
    isolated = {4, 5, 12, 13}
    request = asking(gpus=1, cpus=4)
    assert place(request, host(isolated, realtime=True)).cpus == (4, 5, 12, 13)
    assert isolated.isdisjoint(place(request, host(isolated)).cpus)


def test_realtime_gets_others_where_there_are_too_few() -> None:
    cpus = place(asking(gpus=1, cpus=6), host({4, 5, 12, 13}, realtime=True)).cpus
    assert {4, 5, 12, 13} < set(cpus)
    assert len(cpus) == 6


def test_what_is_isolated_counts_as_free_for_nothing_else() -> None:
    with pytest.raises(NoCapacity) as refused:
        place(asking(gpus=1, cpus=12), host({4, 5, 12, 13}))
    assert "10 free CPUs beside 4 isolated for realtime" in refused.value.hint


def test_the_first_core_of_a_node_that_is_not_isolated_stays_with_the_host() -> None:
    assert host({0, 8}).housekeeping == {1, 9}
    assert host(set(range(16))).housekeeping == set()


@pytest.mark.parametrize(
    ("isolated", "nohz_full", "command_line", "cpus"),
    [
        ("1-2", "", "", {1, 2}),
        ("1-2", "2-3", "isolcpus=9", {1, 2, 3}),
        ("1-2", "(null)", "", {1, 2}),
        (None, None, "quiet isolcpus=nohz,domain,1-2,5 nohz_full=6", {1, 2, 5, 6}),
        (None, None, "isolcpus=managed_irq,1-2", set()),
        (None, None, "isolcpus=x nohz_full=1-", set()),
    ],
)
def test_which_are_isolated(isolated: str | None, nohz_full: str | None, command_line: str, cpus: set[int]) -> None:
    tree = copy(original("hgx8"))
    tree.files["/proc/cmdline"] = command_line
    for name, text in (("isolated", isolated), ("nohz_full", nohz_full)):
        if text is not None:
            tree.files[f"{CPUS}/{name}"] = text
    assert read_isolated(Recorded(tree, "hgx8")) == cpus


@pytest.fixture
def file(fast_folder: Path) -> Path:
    """A host of which CPUs 20-40 and their siblings are isolated."""
    tree = copy(original("hgx8"))
    tree.files[f"{CPUS}/isolated"] = "20-40,116-136"
    file = fast_folder / "isolated.host"
    file.write_text(form(tree), encoding="utf-8")
    return file


class TestClaims:
    """`--realtime` of `place` and `claim create`."""

    def test_they_come_first(self, run: Run, file: Path) -> None:
        assert run(f"place --gpus 1 --cpus 4 --realtime --json --host {file}").document["cpus"] == "20-21,116-117"
        claim = run(f"claim create --owner vm/rt --gpus 1 --cpus 4 --realtime --yes --json --simulate {file}").document
        assert claim["cpus"] == "20-21,116-117"

    def test_too_few_are_reported(self, run: Run, file: Path) -> None:
        whys = run(f"place --gpus 1 --cpus 46 --realtime --json --host {file}").document["why"]
        assert any("realtime CPUs that are not isolated: 1-2,97-98" in why for why in whys)
        assert any(
            "the host isolates no CPUs" in w
            for w in run("place --gpus 1 --cpus 4 --realtime --host hgx8 --json").document["why"]
        )

    def test_no_cpus_are_asked_for(self, run: Run) -> None:
        done = run("place --gpus 1 --realtime --host hgx8")
        assert (done.code, "give --cpus N" in done.err) == (2, True)


class TestDomains:
    """What `domain build` says of them."""

    @pytest.fixture
    def options(self, file: Path) -> str:
        return f"--gpus 1 --memory 16GiB --host {file}"

    def test_a_realtime_guest_has_a_core_for_each_vcpu(self, run: Run, options: str) -> None:
        text = run(f"domain build rt --template realtime --cpus 4 {options}").out
        for vcpu, cpu in enumerate((20, 21, 22, 23)):
            assert f"<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>" in text
        assert "threads='1'" in text

    def test_both_threads_on_request(self, run: Run, options: str) -> None:
        text = run(f"domain build rt --template realtime --cpus 4 --smt together {options}").out
        assert "<vcpupin vcpu='1' cpuset='116'/>" in text

    def test_other_guests_leave_them_alone(self, run: Run, options: str) -> None:
        text = run(f"domain build vm1 --template compute-linux --cpus 44 {options}").out
        assert "vcpupin vcpu='43'" in text
        assert not any(f"cpuset='{cpu}'" in text for cpu in (*range(20, 41), *range(116, 137)))

    def test_too_few_are_reported(self, run: Run, options: str) -> None:
        done = run(f"domain build rt --template realtime --cpus 24 {options} --explain")
        assert "realtime CPUs that are not isolated: 1-3,97-99" in done.out + done.err
