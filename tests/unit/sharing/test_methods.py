"""What enforces a share: the strongest that the host has, and what is not enforced is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.placement.model.share import Enforcement, GpuShare
from vfioctl.sharing.enforcing.methods import plan_of, why_not
from vfioctl.sharing.model.enforcement import Enforced, GpuFacts, HostFacts
from vfioctl.sharing.probe.facts import read_facts

ADDRESS, GIB = "0000:41:00.0", 1 << 30
ALL = HostFacts(
    mps="/usr/bin/nvidia-cuda-mps-control", dmem=frozenset({f"drm/{ADDRESS}/vram0"}), nvidia=615, unified=True
)


def gpu(driver: str = "nvidia", *, mig: bool | None = False, vgpus: bool = False, mps: bool = False) -> GpuFacts:
    return GpuFacts(ADDRESS, "gpu0", "a GPU", driver, mig, vgpus, mps)


def enforced(share: GpuShare, facts: GpuFacts, host: HostFacts) -> Enforced:
    (found,) = plan_of(facts, host, [("11111111", "pod/a/b/c", share)]).shares
    return found


def available(facts: GpuFacts, host: HostFacts) -> set[Enforcement]:
    return {method.enforcement for method in plan_of(facts, host, ()).methods if method.available}


def test_the_strongest_comes_first_and_nothing_comes_last() -> None:
    assert [method.enforcement for method in plan_of(gpu(), ALL, ()).methods] == list(Enforcement)


@pytest.mark.parametrize(
    ("facts", "host", "expected"),
    [
        (gpu(), ALL, {"mps", "dmem", "nvml", "freezer", "none"}),
        (gpu("amdgpu", mig=None), ALL, {"dmem", "freezer", "none"}),
        (gpu(mig=True), ALL, {"mig", "dmem", "freezer", "none"}),
        (gpu(vgpus=True), HostFacts(), {"vgpu", "none"}),
        (gpu("ast"), HostFacts(unified=True), {"none"}),
        (gpu(), HostFacts(dmem=frozenset({"drm/0000:42:00.0/vram0"})), {"none"}),
        (gpu(""), HostFacts(), {"none"}),
    ],
)
def test_a_method_is_available_where_the_host_and_the_gpu_have_it(
    facts: GpuFacts, host: HostFacts, expected: set[str]
) -> None:
    assert available(facts, host) == expected


@pytest.mark.parametrize(
    ("facts", "version", "words"),
    [
        (gpu("amdgpu"), 615, "only NVIDIA's driver"),
        (gpu(), None, "is not known: 615 and later"),
        (gpu(), 614, "NVIDIA's driver 614 limits no memory"),
        (gpu(mig=True), 700, "MIG is on"),
        (gpu(), 615, "which vfioctl does not call"),
    ],
)
def test_nvidias_driver_limits_the_memory_of_control_groups_since_615(
    facts: GpuFacts, version: int | None, words: str
) -> None:
    methods = plan_of(facts, HostFacts(nvidia=version), ()).methods
    (method,) = [method for method in methods if method.enforcement is Enforcement.NVML]
    assert words in method.words
    assert method.available == ("does not call" in words)


@pytest.mark.parametrize(
    ("text", "version"), [("615.43.02", 615), ("580.95", 580), ("", None), ("x", None), ("9" * 99, None)]
)
def test_the_version_of_nvidias_driver_is_that_of_its_module(text: str, version: int | None) -> None:
    tree = Tree()
    tree.put("/sys/module/nvidia/version", text)
    assert read_facts(Recorded(tree, "recorded")).nvidia == version
    assert read_facts(Recorded(Tree(), "recorded")).nvidia is None


def gaps_of(share: GpuShare, facts: GpuFacts, host: HostFacts) -> str:
    return " | ".join(enforced(share, facts, host).gaps)


def test_mps_applies_where_a_daemon_runs_and_nowhere_else() -> None:
    share = GpuShare(ADDRESS, 40, 8 * GIB)
    running, idle = enforced(share, gpu(mps=True), ALL), enforced(share, gpu(), ALL)
    assert (running.cores_by, running.memory_by) == (Enforcement.MPS, Enforcement.MPS)
    assert (idle.cores_by, idle.memory_by) == (Enforcement.NONE, Enforcement.NONE)


@pytest.mark.parametrize(
    ("state", "words", "command"),
    [
        ("", "start it", "start"),
        ("inactive", "its daemon has died", "apply"),
        ("silent", "its daemon does not answer", "status"),
        ("unknown", "systemd does not say whether its daemon runs", "status"),
    ],
)
def test_a_daemon_that_does_not_serve_enforces_nothing_and_says_what_comes_next(
    state: str, words: str, command: str
) -> None:
    facts, share = replace(gpu(), mps_state=state), GpuShare(ADDRESS, 40, 8 * GIB)
    (method,) = [method for method in plan_of(facts, ALL, ()).methods if method.enforcement is Enforcement.MPS]
    assert (method.words.endswith(words), method.next_command) == (True, f"vfioctl mps {command} {ADDRESS}")
    assert enforced(share, facts, ALL).cores_by is Enforcement.NONE


def test_the_daemon_of_one_claim_enforces_no_other_share() -> None:
    share = GpuShare(ADDRESS, 40, 8 * GIB)
    own, other = (replace(gpu(mps=True), mps_claim=claim) for claim in ("11111111", "22222222"))
    assert enforced(share, own, ALL).cores_by is Enforcement.MPS
    assert enforced(share, other, ALL).cores_by is Enforcement.NONE


def test_what_was_asked_for_and_is_not_in_force_is_named() -> None:
    share = GpuShare(ADDRESS, 40, 8 * GIB, enforce="mps")
    assert "mps was asked for, and is not in force" in gaps_of(share, gpu(), ALL)
    assert "asked for" not in gaps_of(share, gpu(mps=True), ALL)
    assert "asked for" not in gaps_of(share._replace(enforce="none"), gpu(), ALL)


def test_a_claim_that_asks_for_something_else_has_no_mps() -> None:
    found = enforced(GpuShare(ADDRESS, 40, 8 * GIB, enforce="none"), gpu(mps=True), ALL)
    assert (found.cores_by, found.memory_by) == (Enforcement.NONE, Enforcement.NONE)


def test_a_whole_gpu_has_nothing_to_enforce() -> None:
    found = enforced(GpuShare(ADDRESS, 100), gpu(), ALL)
    assert (found.cores_by, found.memory_by, found.gaps) == (None, None, ())


@given(
    cores=st.integers(0, 99),
    memory=st.integers(0, 80),
    mps=st.booleans(),
    enforce=st.sampled_from(["", *Enforcement]),
)
def test_whatever_is_not_enforced_is_named(cores: int, memory: int, enforce: str, *, mps: bool) -> None:
    found = enforced(GpuShare(ADDRESS, cores, memory * GIB, enforce=enforce), gpu(mps=mps), ALL)
    text = " | ".join(found.gaps)
    assert ("time on the GPU" in text) == (found.cores_by in (None, Enforcement.NONE))
    assert ("memory: " in text) == (found.memory_by in (None, Enforcement.NONE))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("mps", ""),
        ("none", ""),
        ("dmem", "dmem is set for control groups"),
        ("nvml", "nvml is set for control groups"),
        ("freezer", "freezer is set for control groups"),
        ("mig", "mig divides a GPU into parts of its own"),
        ("vgpu", "vgpu divides a GPU into parts of its own"),
    ],
)
def test_a_method_that_enforces_no_share_says_why(wanted: str, words: str) -> None:
    why = why_not(gpu(vgpus=True), ALL, Enforcement(wanted))
    assert why.startswith(words)
    assert bool(why) == bool(words)


def test_a_method_that_the_host_does_not_have_says_why() -> None:
    assert why_not(gpu(), HostFacts(), Enforcement.MPS).startswith("mps is not available: nvidia-cuda-mps-control")
