"""Interrupts are heard where they are listened for, and nowhere else."""

import signal

import pytest

from vfioctl.signals import held_back, listen


def test_it_is_heard_where_one_listens() -> None:
    with held_back():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            listen()
        listen()


def test_it_is_heard_when_the_block_has_ended() -> None:
    with pytest.raises(KeyboardInterrupt), held_back(), held_back():
        signal.raise_signal(signal.SIGINT)


def test_a_failure_comes_before_it() -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), held_back():
        fail()


def test_nothing_waits_for_one_that_another_thread_took(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{signal.SIGINT}, set()]
    monkeypatch.setattr(signal, "sigpending", lambda: answers.pop(0))
    listen()
    assert not answers
