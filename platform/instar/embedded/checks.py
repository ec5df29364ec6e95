"""Checks before the start: free ports, disk space, and answers of running services."""

from __future__ import annotations

import errno
import http.client
import json
import socket
from pathlib import Path
from typing import NamedTuple

import psutil

from instar_core.errors import PrerequisiteError

__all__ = ["Answer", "ask_http", "ask_redis", "ask_beat", "free_port", "require_free_port"]

_TIMEOUT_S = 2.0
_LONGEST_ANSWER = 20_000


def require_free_port(host: str, port: int, variable: str) -> None:
    """Checks that a service can listen there.

    Args:
        host: Address to bind.
        port: TCP port to bind.
        variable: Environment variable that changes the port, for the remedy.

    Raises:
        PrerequisiteError: The port is taken (says by whom, where that can be seen) or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            who = _listener(port)
            if not who and error.errno != errno.EADDRINUSE:
                raise PrerequisiteError(
                    f"port {port} on {host} cannot be used: {error.strerror}.",
                    remedy=f"Choose an address of this machine, or another port with {variable}.",
                ) from error
            raise PrerequisiteError(
                f"port {port} on {host} is in use{' by ' + who if who else ''}.",
                remedy=f"Stop that process, or choose another port with {variable}={port + 10}.",
            ) from error


def _listener(port: int) -> str:
    """Who listens on a TCP port, as 'name (pid N)'; empty when this user may not see it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status != psutil.CONN_LISTEN or tuple(connection.laddr)[1:] != (port,):
                continue
            if connection.pid is None:
                return ""
            return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return ""
    return ""


def free_port() -> int:
    """A loopback TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Answer(NamedTuple):
    """What a service says of itself: nothing, that it is ready, or why it is not yet."""

    heard: bool
    ready: bool = False
    reason: str = ""


def ask_http(host: str, port: int, path: str) -> Answer:
    """What a GET of the path answers: 200 is ready, anything else is a reason to wait."""
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(reach, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(True, response.status == 200, _reason(response.read(_LONGEST_ANSWER)))
    except (OSError, http.client.HTTPException):
        return Answer(False)
    finally:
        connection.close()


def _reason(body: bytes) -> str:
    """The reason that a service gives in its JSON answer, if it gives one."""
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    return str(found.get("reason", "")) if isinstance(found, dict) else ""


def ask_redis(port: int, password: str) -> Answer:
    """Whether a Redis-protocol server on this port takes the password and answers a PING."""
    secret = password.encode("utf-8")
    login = b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n*1\r\n$4\r\nPING\r\n" % (len(secret), secret)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as link:
            link.sendall(login)
            got = b""
            while got.count(b"\r\n") < 2:
                piece = link.recv(256)
                if not piece:
                    return Answer(True, reason="it hung up")
                got += piece
            return Answer(True, got == b"+OK\r\n+PONG\r\n")
    except OSError:
        return Answer(False)


def ask_beat(path: Path, pid: int, *, now: float, max_age_s: float = 30.0) -> Answer:
    """Whether the process ``pid`` has touched its heartbeat file lately."""
    try:
        named = path.read_text(encoding="ascii").strip()
        age = now - path.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return Answer(False)
    beats = named == str(pid) and age <= max_age_s
    return Answer(beats, beats)
