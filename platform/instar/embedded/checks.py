"""Checks before the start: free ports, disk space, and answers of running services."""

from __future__ import annotations

import errno
import http.client
import socket
from pathlib import Path

import psutil

from instar_core.errors import PrerequisiteError

__all__ = ["answers_http", "answers_redis", "beats", "free_port", "require_free_port"]

_TIMEOUT_S = 2.0


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
            holder = f" by {who}" if who else ""
            reason = (
                f"is in use{holder}"
                if who or error.errno == errno.EADDRINUSE
                else str(error.strerror)
            )
            raise PrerequisiteError(
                f"port {port} on {host} {reason}.",
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


def answers_http(host: str, port: int, path: str) -> bool:
    """Whether a GET of the path answers 200 soon."""
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(reach, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def answers_redis(port: int, password: str) -> bool:
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
                    return False
                got += piece
            return got == b"+OK\r\n+PONG\r\n"
    except OSError:
        return False


def beats(path: Path, pid: int, *, now: float, max_age_s: float = 30.0) -> bool:
    """Whether the process ``pid`` has touched its heartbeat file lately."""
    try:
        named = path.read_text(encoding="ascii").strip()
        age = now - path.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return False
    return named == str(pid) and age <= max_age_s
