"""Definitions of devices that are bound at boot: their text, their udev rule, and which device each is about."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import pytest

from tests.hosts.machines import REGISTRY, original
from tests.probing import read_inventory
from vfioctl.binding.model.definition import (
    RULE,
    RULE_FORM,
    DeviceDefinition,
    definition_file,
    device_path_form,
    identity_of,
    locate,
    locate_all,
    path_of,
    rule_file,
)
from vfioctl.core.change import Change
from vfioctl.inventory.model.functions import Function, Inventory, Nvml
from vfioctl.inventory.model.machine import Iommu
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.host import Recorded

PORT, CARD, TWIN_PORT, TWIN = "0000:00:01.0", "0000:01:00.0", "0000:00:02.0", "0000:02:00.0"
UUIDS = ("GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002")


def function(address: str, upstream: str = "", *, device: str = "2330", uuid: str = "") -> Function:
    return Function(
        address=PciAddress(address),
        vendor_id="10de",
        device_id=device,
        subsystem_vendor_id="10de",
        subsystem_device_id="16c1",
        class_code="030200" if upstream else "060400",
        driver="nvidia" if upstream else "pcieport",
        upstream=PciAddress(upstream) if upstream else None,
        nvml=Nvml(uuid=uuid) if uuid else None,
    )


def host(*functions: Function) -> Inventory:
    return Inventory(functions=functions, groups=(), numa_nodes=(), iommu=Iommu(kind="x", translating=True), unread={})


def two_cards(first: str = "", second: str = "") -> Inventory:
    """Two cards of one model, each behind its port."""
    return host(
        function(PORT, device="1111"),
        function(CARD, PORT, uuid=first),
        function(TWIN_PORT, device="1111"),
        function(TWIN, TWIN_PORT, uuid=second),
    )


def one_card(address: str = CARD, port: str = PORT, *, device: str = "2330") -> Inventory:
    return host(function(port, device="1111"), function(address, port, device=device))


def definition(inventory: Inventory, address: str = CARD) -> DeviceDefinition:
    here = inventory.by_address[PciAddress(address)]
    return DeviceDefinition(address=here.address, driver="vfio-pci", identity=identity_of(inventory, here))


@pytest.mark.parametrize("name", ["hgx8", "workstation", "vmd-domain", "l40s"])
def test_each_function_of_a_host_has_one_definition(name: str) -> None:
    """Its text is read back as it was, its rule has the form that a plan may contain, and it finds itself."""
    inventory = read_inventory(Recorded(original(name), name))
    own = {f.address: definition(inventory, f.address) for f in inventory.functions}
    assert len(own) > 5
    for address, one in own.items():
        assert DeviceDefinition.parse(one.text) == one
        assert RULE_FORM.fullmatch(one.rule), one.rule
        assert (locate(one, inventory).address, locate(one, inventory).why) == (address, "")
    assert len({one.identity.path for one in own.values()}) == len(own), "a path is of one device"


def test_the_path_has_no_bus_number_below_a_bridge() -> None:
    inventory = one_card()
    path = path_of(inventory, inventory.by_address[PciAddress(CARD)])
    assert path == "0000:00/01.0/00.0"
    form = device_path_form(path)
    assert form == "*/pci0000:00/0000:00:01.0/0000:??:00.0"
    assert fnmatch.fnmatchcase("/devices/pci0000:00/0000:00:01.0/0000:3b:00.0", form)
    assert not fnmatch.fnmatchcase("/devices/pci0000:00/0000:00:02.0/0000:01:00.0", form)
    assert not fnmatch.fnmatchcase("/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0", form)


class TestLocate:
    def test_a_card_that_the_kernel_numbered_anew(self) -> None:
        place = locate(definition(two_cards()), one_card("0000:05:00.0"))
        assert place.address == "0000:05:00.0"
        assert place.why == "it moved from 0000:01:00.0 to 0000:05:00.0"

    def test_a_card_at_the_twins_address(self) -> None:
        """All addresses moved by one: the address of each card is another's now."""
        moved = host(
            function(PORT, device="1111"),
            function(TWIN, PORT),
            function(TWIN_PORT, device="1111"),
            function("0000:03:00.0", TWIN_PORT),
        )
        assert locate(definition(two_cards()), moved).address == TWIN
        assert locate(definition(two_cards(), TWIN), moved).address == "0000:03:00.0"

    def test_a_twin_is_not_taken_for_a_card_that_is_gone(self) -> None:
        """It has the card's address and ids now, in another slot."""
        place = locate(definition(two_cards()), one_card(CARD, TWIN_PORT))
        assert place.address is None
        assert "cannot be told from others with the same ids: 0000:01:00.0" in place.why

    def test_the_only_card_of_its_model_may_change_its_slot(self) -> None:
        place = locate(definition(one_card()), one_card("0000:07:00.0", TWIN_PORT))
        assert place.address == "0000:07:00.0"

    def test_two_cards_now_where_there_was_one(self) -> None:
        elsewhere = host(
            function("0000:00:03.0", device="1111"), function(CARD, "0000:00:03.0"),
            function(TWIN_PORT, device="1111"), function(TWIN, TWIN_PORT),
        )  # fmt: skip
        assert locate(definition(one_card()), elsewhere).address is None

    def test_another_card_in_its_slot_is_not_taken(self) -> None:
        place = locate(definition(one_card()), one_card(device="2204"))
        assert place.address is None
        assert place.why == "no such device is on this host: another device has its address (10de:2204)"

    def test_nothing_there(self) -> None:
        assert locate(definition(one_card()), host()).why == "no such device is on this host"

    def test_cards_that_changed_places_are_told_by_their_uuids(self) -> None:
        before, after = two_cards(*UUIDS), two_cards(*UUIDS[::-1])
        assert locate(definition(before), after).address == TWIN
        assert locate(definition(before), two_cards("", UUIDS[1])).address == CARD, "the other one is excluded"
        unread = locate(definition(before), two_cards(UUIDS[1], UUIDS[1]))
        assert unread.address is None

    def test_a_device_that_two_definitions_are_about_is_nobodys(self) -> None:
        one = definition(one_card())
        other = one.model_copy(update={"address": PciAddress("0000:09:00.0")})
        places = locate_all({"a": one, "b": other}, one_card())
        assert {place.address for place in places.values()} == {None}
        assert places["a"].why == "two definitions are about 0000:01:00.0: remove one"


class TestRule:
    def test_names_the_driver_for_this_slot_and_these_ids_only(self) -> None:
        assert definition(one_card()).rule.splitlines()[1] == (
            'ACTION=="add", SUBSYSTEM=="pci", DEVPATH=="*/pci0000:00/0000:00:01.0/0000:??:00.0", ATTR{vendor}=='
            '"0x10de", ATTR{device}=="0x2330", ATTR{subsystem_vendor}=="0x10de", ATTR{subsystem_device}=="0x16c1", '
            'ATTR{class}=="0x030200", ENV{VFIOCTL_DRIVER}="vfio-pci"'
        )

    @pytest.mark.parametrize(("allowed", "guarded"), [(False, True), (True, False)])
    def test_spares_the_boot_display(self, *, allowed: bool, guarded: bool) -> None:
        own = definition(one_card())
        display = own.identity.model_copy(update={"class_code": "030000"})
        rule = own.model_copy(update={"identity": display, "boot_display": allowed}).rule
        assert ('ATTR{boot_vga}=="0"' in rule) is guarded

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda rule: f'{rule}, RUN+="/bin/sh -c reboot"',
            lambda rule: f'{rule}\nRUN+="/bin/true"',
            lambda rule: rule.replace('ENV{VFIOCTL_DRIVER}="vfio-pci"', 'ENV{VFIOCTL_DRIVER}="$(reboot)"'),
            lambda rule: rule.replace("# Binds", 'RUN+="x"\n# Binds'),
            lambda rule: rule.replace('ATTR{class}=="0x030200", ', ""),
            lambda rule: rule.replace("/0000:??:00.0", "/*"),
        ],
    )
    def test_of_a_hostile_plan_is_refused(self, spoil: object) -> None:
        assert callable(spoil)
        address = PciAddress(CARD)
        good = definition(one_card()).rule
        change = Change(kind=RULE, name=rule_file(address), subject=address, before="", after=good)
        REGISTRY.resource(change).validate(change)
        bad = change.model_copy(update={"after": spoil(good)})
        assert bad.after != good
        with pytest.raises(ValueError, match="not a udev rule of vfioctl"):
            REGISTRY.resource(bad).validate(bad)


def test_the_files_are_named_after_the_address() -> None:
    assert definition_file(CARD) == "/etc/vfioctl/devices.d/0000:01:00.0.toml"
    assert rule_file(CARD) == "/etc/udev/rules.d/61-vfioctl-0000:01:00.0.rules"


def test_vfs_have_paths_too() -> None:
    port, physical = function(PORT, device="1111"), function(CARD, PORT)
    virtual = replace(function("0000:01:00.4", PORT), physfn=physical.address)
    assert path_of(host(port, physical, virtual), virtual) == "0000:00/01.0/00.4"
