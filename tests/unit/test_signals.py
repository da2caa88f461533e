"""Interrupts are heard where they are listened for, and nowhere else."""

import signal
from collections.abc import Collection

import pytest

from vfioctl.signals import Interrupt, are_deferred, check_interrupt, deferred


def test_it_is_heard_where_one_listens() -> None:
    with deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()
        check_interrupt()


def test_it_is_heard_when_the_block_has_ended() -> None:
    with pytest.raises(KeyboardInterrupt), deferred(), deferred():
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_says_which_signal_it_was(number: signal.Signals) -> None:
    with deferred():
        signal.raise_signal(number)
        with pytest.raises(Interrupt) as caught:
            check_interrupt()
    assert caught.value.number == number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ignored_one_stays_ignored(number: signal.Signals) -> None:
    """As with nohup, or in the background of a script."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with deferred():
            signal.raise_signal(number)
            check_interrupt()
    finally:
        signal.signal(number, before)


def test_a_failure_comes_before_it() -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), deferred():
        fail()


def test_one_that_is_heard_while_the_block_begins_leaves_none_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that blocks them calls the handler of one that came just before."""
    genuine, before = signal.pthread_sigmask, signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def masked(how: int, numbers: Collection[int]) -> object:
        genuine(how, numbers)
        if how == signal.SIG_BLOCK and numbers:
            raise Interrupt(signal.SIGINT)
        return before

    with monkeypatch.context() as patch:
        patch.setattr(signal, "pthread_sigmask", masked)
        with pytest.raises(Interrupt), deferred():
            pytest.fail("the block has begun")
    assert not are_deferred()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_nothing_waits_for_one_that_another_thread_took(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{signal.SIGINT}, set()]
    monkeypatch.setattr(signal, "sigpending", lambda: answers.pop(0))
    check_interrupt()
    assert not answers
