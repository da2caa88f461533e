"""What is remembered of the claims of containers, and forgotten when they have ended."""

from __future__ import annotations

import gc

from tests.unit.kubelet.test_allocation import ALL, GPU, Node, listing, node
from vfioctl.kubelet.allocating import handovers
from vfioctl.kubelet.allocating.deadline import Deadline
from vfioctl.kubelet.allocating.following import Following
from vfioctl.kubelet.allocating.handovers import alone_with, count_of

__all__ = ["node"]


def test_the_count_of_a_claim_goes_with_it(node: Node) -> None:
    claim = node.allocate(ALL, node.devices(ALL, GPU))
    node.ready(ALL, node.devices(ALL, GPU))
    following = Following(node.host.session, node.settings, lambda: None)
    for _ in range(2):
        following.follow(listing, lambda *_: None)
        assert count_of(claim.id) == 1
    node.host.claims.transfer(claim.id, "vm/web")
    following.follow(listing, lambda *_: None)
    assert count_of(claim.id) == 1, "it may be given back"
    node.host.claims.release(claim.id)
    following.follow(listing, lambda *_: None)
    assert count_of(claim.id) == 0


def test_a_lock_is_kept_while_somebody_has_it() -> None:
    with alone_with("11111111", Deadline(1)):
        gc.collect()
        assert "11111111" in handovers._locks
    gc.collect()
    assert "11111111" not in handovers._locks
