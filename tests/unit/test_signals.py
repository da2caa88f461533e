"""Interrupts are heard where they are listened for, and nowhere else."""

import signal

import pytest

from vfioctl.signals import check_interrupt, deferred


def test_it_is_heard_where_one_listens() -> None:
    with deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()
        check_interrupt()


def test_it_is_heard_when_the_block_has_ended() -> None:
    with pytest.raises(KeyboardInterrupt), deferred(), deferred():
        signal.raise_signal(signal.SIGINT)


def test_a_failure_comes_before_it() -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), deferred():
        fail()


def test_nothing_waits_for_one_that_another_thread_took(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{signal.SIGINT}, set()]
    monkeypatch.setattr(signal, "sigpending", lambda: answers.pop(0))
    check_interrupt()
    assert not answers
