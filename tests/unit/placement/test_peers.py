"""NVLink peers: from what NVML says of the other ends of links."""

from __future__ import annotations

import pytest

from tests.hosts.machines import copy, original
from tests.probing import read_inventory
from vfioctl.kernel.protocol import Unanswered
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.placement.model.claims import Taken
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.probe.capacity import peers_in, read_capacity

A, B, C, SWITCH = "0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:07:00.0"


@pytest.mark.parametrize(
    ("links", "peers"),
    [
        ({A: B, B: A, C: ""}, {A: {B}, B: {A}}),
        ({A: B, B: "", C: ""}, {A: {B}, B: {A}}),
        ({A: SWITCH, B: f"{SWITCH} 0000:08:00.0", C: "0000:09:00.0"}, {A: {B}, B: {A}}),
        ({A: f"{B} {C}", B: A, C: A}, {A: {B, C}, B: {A}, C: {A}}),
        ({A: "0000:00:00.0", B: "0000:00:00.0"}, {}),
        ({A: A}, {}),
        ({}, {}),
    ],
)
def test_peers_are_joined_by_a_link_or_a_switch(links: dict[str, str], peers: dict[str, set[str]]) -> None:
    answer = {gpu: {"name": "H100", "nvlink": ends} for gpu, ends in links.items()}
    assert peers_in(answer) == peers


def test_without_an_answer_none_are_known() -> None:
    assert peers_in(Unanswered("it hangs")) == {}
    assert peers_in({A: {"error": "lost"}, B: {}}) == {}


def test_a_host_s_peers_are_read_only_when_asked_for() -> None:
    tree = copy(original("hgx8"))
    for gpu in (A, B):
        tree.properties[f"nvml:{gpu}"]["nvlink"] = SWITCH
    kernel = Recorded(tree, "")
    inventory = read_inventory(kernel)
    assert read_capacity(kernel, inventory, Taken(), ClaimSettings()).peers == {}
    assert read_capacity(kernel, inventory, Taken(), ClaimSettings(), links=True).peers == {A: {B}, B: {A}}
