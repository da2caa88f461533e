"""Kubelets that do not answer as the protocol says: each costs the call, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from vfioctl.kubelet.serving.loop import Loop
from vfioctl.kubelet.serving.messages import Unanswered, register
from vfioctl.kubelet.serving.pods import PodResources, ask_once

Stream = Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]
SECONDS = 1.0


class Streams(grpc.GenericRpcHandler):
    """Answers each call, whatever it is, with these messages."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def service(self, _: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._stream)


@contextmanager
def grpc_server(path: Path, stream: Stream) -> Iterator[None]:
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, [Streams(stream)])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait(10)


@contextmanager
def raw_server(path: Path, words: bytes) -> Iterator[None]:
    """Says these words to whoever connects, then closes the connection."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(words)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def nothing(*_: object) -> Iterator[bytes]:
    yield from ()


def garbage(*_: object) -> Iterator[bytes]:
    yield b"\xff\xff\xff"


def late(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait(10)
    yield b""


def refused(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    context.abort(grpc.StatusCode.UNKNOWN, "not like this")


def raw(words: bytes) -> Callable[[Path], Any]:
    return lambda path: raw_server(path, words)


def speaking(stream: Stream) -> Callable[[Path], Any]:
    return lambda path: grpc_server(path, stream)


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        pytest.param(speaking(nothing), "INTERNAL: the answer is not understood", id="no message"),
        pytest.param(speaking(garbage), "INTERNAL: the answer is not understood", id="another message"),
        pytest.param(speaking(late), "DEADLINE_EXCEEDED: no answer within 1 s", id="late"),
        pytest.param(speaking(refused), "UNKNOWN: not like this", id="refused"),
        pytest.param(raw(b""), "UNAVAILABLE: ", id="closed"),
        pytest.param(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "", id="HTTP/1"),
        pytest.param(raw(b"\x00" * 100), "", id="zeros"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_the_call(
    short_folder: Path, serve: Callable[[Path], Any], words: str
) -> None:
    file = short_folder / "kubelet.sock"
    with Loop() as loop, closing(PodResources(str(file), loop, SECONDS)) as kubelet:
        with serve(file):
            for ask in (lambda: loop.run(register(str(file), "x.sock", "a/b", SECONDS)), kubelet.list):
                with pytest.raises(Unanswered) as unanswered:
                    ask()
                assert str(unanswered.value).startswith(words)
            assert kubelet.allocatable() is None
            assert ask_once(str(file), SECONDS) is None
        file.unlink(missing_ok=True)
        with grpc_server(file, lambda *_: iter([b""])):
            assert kubelet.list() is not None


def test_a_kubelet_that_is_not_there_is_unavailable(short_folder: Path) -> None:
    with Loop() as loop, pytest.raises(Unanswered, match="UNAVAILABLE: No such file or directory"):
        loop.run(register(str(short_folder / "kubelet.sock"), "x.sock", "a/b", SECONDS))
