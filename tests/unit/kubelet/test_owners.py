"""What becomes of claims by the kubelet's list of pods."""

from __future__ import annotations

import pytest

from tests.unit.kubelet.values import GPU, JOB, MDEV, NAME, OTHER, WEB, claim, listing
from vfioctl.claims.model.claim import ClaimState
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.choosing.owners import Absences, Verdict, differences, verdicts
from vfioctl.kubelet.model.device import Listing

NOTHING = Listing({})
AFTER = {False: 10.0, True: 60.0}
COMPANION = PciAddress("0000:41:00.1")


def of(found: Listing, *claims: object) -> tuple[Verdict, ...]:
    return verdicts(claims, found)  # type: ignore[arg-type]


class TestAVerdict:
    @pytest.mark.parametrize("name", ["0000:41:00.0", "0000-41-00.0"])
    def test_knows_the_pod_by_the_id_of_any_consumer(self, name: str) -> None:
        (said,) = of(listing({name: WEB}), claim())
        assert (said.pods, said.new_owner, said.is_gone) == ((WEB,), WEB, False)

    def test_knows_the_pod_of_a_mediated_device(self) -> None:
        (said,) = of(listing({str(MDEV): JOB}), claim(MDEV))
        assert said.new_owner == JOB

    def test_is_of_one_resource(self) -> None:
        (said,) = of(listing({str(GPU): WEB}, resource="nvidia.com/other"), claim())
        assert (said.pods, said.is_gone) == ((), True)

    def test_does_not_ask_for_companions(self) -> None:
        (said,) = of(listing({str(COMPANION): JOB}), claim(companions=(COMPANION,)))
        assert said.pods == ()

    def test_that_is_known_has_no_new_owner(self) -> None:
        (said,) = of(listing({str(GPU): WEB}), claim(owner=WEB.owner))
        assert (said.new_owner, said.is_gone) == (None, False)

    def test_of_two_pods_has_no_new_owner(self) -> None:
        (said,) = of(listing({str(GPU): WEB, str(OTHER): JOB}), claim(GPU, OTHER))
        assert (set(said.pods), said.new_owner) == ({WEB, JOB}, None)

    def test_of_one_pod_with_two_devices_has_it_once(self) -> None:
        (said,) = of(listing({str(GPU): WEB, str(OTHER): WEB}), claim(GPU, OTHER))
        assert said.new_owner == WEB

    @pytest.mark.parametrize("state", [ClaimState.RESERVED, ClaimState.RELEASING, ClaimState.WEDGED])
    def test_of_a_claim_that_is_not_held_is_not_gone(self, state: ClaimState) -> None:
        (said,) = of(NOTHING, claim(state=state))
        assert not said.is_gone


class TestAbsences:
    def test_a_known_pod_is_over_after_its_time(self) -> None:
        absences, said = Absences(), of(NOTHING, claim(owner=WEB.owner))
        assert not list(absences.over(said, now=100.0, after=AFTER))
        assert not list(absences.over(said, now=109.9, after=AFTER))
        assert [held.id for held in absences.over(said, now=110.0, after=AFTER)] == ["11111111"]

    def test_a_pod_that_is_not_known_yet_has_more_time(self) -> None:
        absences, said = Absences(), of(NOTHING, claim())
        assert not list(absences.over(said, now=0.0, after=AFTER))
        assert not list(absences.over(said, now=59.0, after=AFTER))
        assert list(absences.over(said, now=60.0, after=AFTER))

    def test_one_that_is_listed_again_begins_again(self) -> None:
        absences, held = Absences(), claim(owner=WEB.owner)
        assert not list(absences.over(of(NOTHING, held), now=0.0, after=AFTER))
        assert not list(absences.over(of(listing({str(GPU): WEB}), held), now=9.0, after=AFTER))
        assert not list(absences.over(of(NOTHING, held), now=11.0, after=AFTER))
        assert list(absences.over(of(NOTHING, held), now=21.0, after=AFTER))

    def test_all_begin_again_with_a_new_kubelet(self) -> None:
        absences, said = Absences(), of(NOTHING, claim(owner=WEB.owner))
        assert not list(absences.over(said, now=0.0, after=AFTER))
        absences.begin_again()
        assert not list(absences.over(said, now=50.0, after=AFTER))

    def test_each_claim_has_its_own(self) -> None:
        absences, first = Absences(), claim(owner=WEB.owner)
        assert not list(absences.over(of(NOTHING, first), now=0.0, after=AFTER))
        both = of(NOTHING, first, claim(OTHER, owner=JOB.owner, id="22222222"))
        assert [held.id for held in absences.over(both, now=10.0, after=AFTER)] == ["11111111"]


class TestDifferences:
    def words(self, found: Listing, *claims: object, resources: tuple[str, ...] = (NAME,)) -> list[str]:
        said = of(found, *claims)
        return [f"{one.claim or one.device}: {one.words}" for one in differences(said, found, resources)]

    def test_are_none_where_both_agree(self) -> None:
        assert not self.words(listing({str(GPU): WEB}), claim(owner=WEB.owner))

    def test_are_none_while_a_pod_is_not_known(self) -> None:
        assert not self.words(NOTHING, claim())
        assert not self.words(listing({str(GPU): WEB}), claim())

    def test_a_pod_is_gone(self) -> None:
        assert self.words(NOTHING, claim(owner=WEB.owner)) == ["11111111: the kubelet knows no pod that has it"]

    def test_another_pod_has_it(self) -> None:
        words = self.words(listing({str(GPU): JOB}), claim(owner=WEB.owner))
        assert words == ["11111111: the kubelet says that pod/batch/job-1/train has its devices"]

    def test_two_pods_have_it(self) -> None:
        words = self.words(listing({str(GPU): (WEB, JOB)}), claim(owner=WEB.owner))
        assert words == ["11111111: the kubelet gave its devices to pod/default/web/main and pod/batch/job-1/train"]

    @pytest.mark.parametrize("name", [str(GPU), "0000-41-00.0"])
    def test_a_pod_has_what_no_claim_has(self, name: str) -> None:
        words = self.words(listing({name: WEB}))
        assert words == [f"{name}: the kubelet says that pod/default/web/main has it, and no claim does"]

    def test_resources_of_other_plugins_are_not_ours(self) -> None:
        assert not self.words(listing({"GPU-1": WEB}, resource="nvidia.com/gpu"))
