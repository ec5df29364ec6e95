"""The portable broker: a Redis-protocol server in pure Python, for machines without redis-server.

Run as ``python -m instar.embedded.fake_broker --port N``; the password comes in the environment.
The server itself would serve anybody, so each connection is checked here before a byte passes.
"""

from __future__ import annotations

import argparse
import hmac
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Protocol

__all__ = ["PASSWORD_VARIABLE", "main", "parse_command"]

PASSWORD_VARIABLE = "INSTAR_BROKER_PASSWORD"
_LONGEST_LINE = 4096
_LOGIN_TIMEOUT_S = 10.0
_NO_LOGIN = b"-NOAUTH Authentication required.\r\n"
_BAD_LOGIN = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"


class _Reader(Protocol):
    def readline(self, limit: int = -1, /) -> bytes | None: ...

    def read(self, size: int = -1, /) -> bytes | None: ...


class _Gone(Exception):
    """The client hung up, was too slow, or does not speak the protocol."""


class _Patient:
    """Exact reads from a non-blocking buffered socket file, within one login's time."""

    def __init__(self, stream: _Reader, handle: int) -> None:
        self._stream = stream
        self._handle = handle
        self.raw = b""

    def line(self) -> bytes:
        """One line, its CRLF included."""
        got = b""
        while not got.endswith(b"\n"):
            piece = self._stream.readline(_LONGEST_LINE)
            if piece:
                got += piece
                if len(got) > _LONGEST_LINE:
                    raise _Gone
                continue
            self._wait()
        self.raw += got
        return got

    def exactly(self, size: int) -> bytes:
        """This many bytes."""
        got = b""
        while len(got) < size:
            piece = self._stream.read(size - len(got))
            if piece:
                got += piece
                continue
            self._wait()
        self.raw += got
        return got

    def _wait(self) -> None:
        readable, _, _ = select.select([self._handle], [], [], _LOGIN_TIMEOUT_S)
        if not readable:
            raise _Gone
        if not os.get_blocking(self._handle):
            # Readable without data is the end of the stream: peek without taking anything.
            with socket.socket(fileno=os.dup(self._handle)) as peeked:
                try:
                    if peeked.recv(1, socket.MSG_PEEK) == b"":
                        raise _Gone
                except BlockingIOError:
                    return


def parse_command(reader: _Patient) -> list[bytes]:
    """One command of the Redis protocol as its words.

    Raises:
        _Gone: It is not an array of bulk strings.
    """
    head = reader.line()
    if not head.startswith(b"*"):
        raise _Gone
    try:
        count = int(head[1:])
        words: list[bytes] = []
        for _ in range(count):
            size_line = reader.line()
            size = int(size_line[1:])
            if not size_line.startswith(b"$") or not 0 <= size <= _LONGEST_LINE or count > 16:
                raise _Gone
            words.append(reader.exactly(size + 2)[:-2])
    except ValueError as error:
        raise _Gone from error
    return words


def _login_of(words: list[bytes]) -> bytes | None:
    """The password a command offers (AUTH, or HELLO with AUTH); ``None`` when it offers none."""
    verb = words[0].upper() if words else b""
    if verb == b"AUTH" and len(words) in (2, 3):
        return words[-1]
    if verb == b"HELLO":
        for place, word in enumerate(words):
            if word.upper() == b"AUTH" and place + 2 < len(words):
                return words[place + 2]
    return None


def _build_server(port: int, password: bytes) -> Any:
    from fakeredis import TcpFakeServer
    from fakeredis._clients._tcp_server import TCPFakeRequestHandler

    class Guarded(TCPFakeRequestHandler):  # type: ignore[misc]
        """A connection that must log in before anything it says is passed on."""

        def handle(self) -> None:
            reader = _Patient(self.rfile, self.rfile.fileno())
            try:
                while True:
                    reader.raw = b""
                    offered = _login_of(parse_command(reader))
                    if offered is not None and hmac.compare_digest(offered, password):
                        break
                    self.wfile.write(_NO_LOGIN if offered is None else _BAD_LOGIN)
                    self.wfile.flush()
            except (_Gone, OSError):
                return
            self.current_client.get_socket().sendall(reader.raw)
            super().handle()

    server = TcpFakeServer(("127.0.0.1", port), server_version=(7, 4))
    server.daemon_threads = True
    server.RequestHandlerClass = Guarded
    server.fake_server.config[b"requirepass"] = password
    return server


def main() -> int:
    """Serves until SIGTERM or SIGINT; 2 when the port is taken or no password was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port: int = parser.parse_args().port
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if not password:
        print(f"{PASSWORD_VARIABLE} is not set", file=sys.stderr)
        return 2
    try:
        server = _build_server(port, password.encode("utf-8"))
    except OSError as error:
        print(f"cannot listen on 127.0.0.1:{port}: {error.strerror}", file=sys.stderr)
        return 2

    def stop(number: int, frame: object) -> None:
        # shutdown() waits for serve_forever, which this very thread runs: ask from another one.
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with server:
        server.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
