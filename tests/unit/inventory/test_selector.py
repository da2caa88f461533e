"""From what an operator types to functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import HOSTS, copy, function, inventory_of, original, unhurried
from tests.unit.conftest import Run
from vfioctl.errors import BadAddress, BadSpec, RequestError, UnknownDevice
from vfioctl.host import Host
from vfioctl.inventory.api import suggest_devices, suggest_drivers, suggest_nodes
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.selection.selector import select
from vfioctl.kernel.protocol import NvmlAnswer
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import form
from vfioctl.session import Session

CARD = inventory_of(
    function("0000:41:00.0"),
    function("0000:41:00.1", "040300", device_id="22ba"),
    function("0000:c1:00.0"),
    function("10000:01:00.0"),
)


def chosen(inventory: Inventory, *selectors: str, every: bool = False) -> list[str]:
    return list(select(inventory, selectors, every=every))


@pytest.mark.parametrize("text", ["0000:41:00.1", "41:00.1", "41:0.1", "00000000:41:00.1", "10de:22ba", "10DE:22BA"])
def test_one_function_has_several_names(text: str) -> None:
    assert chosen(CARD, text) == ["0000:41:00.1"]


def test_gpus_are_numbered_in_address_order() -> None:
    assert chosen(CARD, "gpu2", "gpu0", "gpu1") == ["0000:41:00.0", "0000:c1:00.0", "10000:01:00.0"]


def test_a_virtual_function_has_no_number() -> None:
    host = inventory_of(function("41:00.0", virtfns=("41:00.4",)), function("41:00.4", physfn="41:00.0"))
    assert chosen(host, "gpu0") == ["0000:41:00.0"]
    with pytest.raises(UnknownDevice):
        chosen(host, "gpu1")


def test_a_function_named_twice_is_chosen_once() -> None:
    assert chosen(CARD, "c1:00.0", "gpu1", "gpu0") == ["0000:41:00.0", "0000:c1:00.0"]


def test_ids_that_mean_several_are_refused_by_name_unless_every() -> None:
    with pytest.raises(BadSpec, match=r"10de:2330 matches 3 devices: 0000:41:00\.0, 0000:c1:00\.0") as caught:
        chosen(CARD, "10de:2330")
    assert "--every" in caught.value.hint
    assert chosen(CARD, "10de:2330", every=True) == ["0000:41:00.0", "0000:c1:00.0", "10000:01:00.0"]


def test_nothing_named_is_refused() -> None:
    with pytest.raises(BadSpec, match="no device was named"):
        chosen(CARD)


def test_an_address_that_is_not_there_suggests_the_nearest() -> None:
    with pytest.raises(UnknownDevice, match=r"no device 0000:41:00\.2 here") as caught:
        chosen(CARD, "41:00.2")
    assert caught.value.hint.startswith("the nearest are 0000:41:00.")


def test_an_address_like_no_other_says_how_to_list_them() -> None:
    with pytest.raises(UnknownDevice) as caught:
        chosen(inventory_of(function("0000:41:00.0")), "ffffffff:ff:1f.7")
    assert "inventory --all" in caught.value.hint


@pytest.mark.parametrize(("host", "hint"), [(CARD, "there are gpu0 to gpu2"), (inventory_of(), "this host has no GPU")])
def test_a_number_that_is_not_there_says_which_are(host: Inventory, hint: str) -> None:
    with pytest.raises(UnknownDevice, match="no gpu7 here") as caught:
        chosen(host, "gpu7")
    assert caught.value.hint == hint


def test_ids_that_are_not_there_are_refused() -> None:
    with pytest.raises(UnknownDevice, match="no 1002:73ff here"):
        chosen(CARD, "1002:73ff")


@pytest.mark.parametrize("text", ["", "gpu", "gpu-1", "gpu٣", "GPU0", "10de", "../gpu0", "41:00.0/", "10de:2330 "])
def test_what_names_nothing_is_refused_with_the_ways_to_name_one(text: str) -> None:
    with pytest.raises(BadAddress) as caught:
        chosen(CARD, text)
    assert "gpu0 or 10de:2330" in caught.value.hint


@unhurried
@given(st.text(max_size=30), st.booleans())
def test_any_text_is_chosen_or_refused_as_a_request(text: str, every: bool) -> None:
    with suppress(RequestError):
        assert chosen(CARD, text, every=every)


def test_every_gpu_of_a_bundled_host_can_be_named() -> None:
    inventory = Host.recorded(str(HOSTS / "hgx8.host")).inventory()
    assert len(chosen(inventory, *inventory.numbered_gpus)) == 9
    assert len(chosen(inventory, "10de:2330", every=True)) == 8


class WithoutNvml(Recorded):
    def nvml(
        self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
    ) -> Callable[[], NvmlAnswer]:
        raise AssertionError(gpus, types, links, usage)


def test_completion_does_not_wait_for_nvml(tmp_path: Path) -> None:
    session = Session(WithoutNvml(original("hgx8"), ""), tmp_path / "ledger.db")
    assert [name for name, _ in suggest_devices(session, "")] == [f"gpu{number}" for number in range(9)]
    assert ("nvidia", "") in suggest_drivers(session, "")
    assert suggest_nodes(session, "") == [("0", ""), ("1", "")]


@pytest.mark.parametrize("line", ["show 3b:00.0", "bind 3b:00.0 --dry-run", "claim create --device 3b:00.0 --dry-run"])
def test_a_function_that_does_not_answer_is_not_said_to_be_absent(run: Run, tmp_path: Path, line: str) -> None:
    tree = copy(original("t4"))
    tree.properties.setdefault("sim:0000:3b:00.0", {})["unanswered"] = "1"
    host = tmp_path / "t4.host"
    host.write_text(form(tree))
    more = ["--owner", "vm/a"] if line.startswith("claim") else []
    answer = run(f"{line} --simulate {host}", *more)
    assert answer.code == 3, answer.err
    assert "0000:3b:00.0 is there, and is not read: no answer in 2 s" in answer.err
