"""The broker: a Redis-protocol doorbell, by a server on the PATH or by the portable one.

It holds nothing that matters: jobs live in Postgres, and what a dead broker forgot is rung again.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from instar.embedded.checks import ask_redis, free_port
from instar.embedded.fake_broker import PASSWORD_VARIABLE
from instar.embedded.files import private_write
from instar.embedded.services import Command

__all__ = ["Broker", "plan_broker"]


@dataclass(frozen=True, slots=True)
class Broker:
    """A planned broker: how to run it and how to reach it."""

    kind: str
    port: int
    url: str
    command: Command


def plan_broker(directory: Path, password: str, environment: Mapping[str, str]) -> Broker:
    """A broker on a free loopback port, behind a password.

    Args:
        directory: Private directory for the server's configuration file.
        password: The password every client must give.
        environment: Environment of the process.

    Returns:
        ``redis-server`` or ``valkey-server`` where one is on the PATH, else the portable server.
    """
    port = free_port()
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is not None:
        settings = directory / "broker.conf"
        private_write(
            settings,
            # JSON's quoting is the server's own: paths and passwords may hold spaces.
            f"bind 127.0.0.1\nport {port}\nrequirepass {json.dumps(password)}\n"
            'save ""\nappendonly no\ndaemonize no\n'
            f"dir {json.dumps(str(directory))}\n",
        )
        arguments: tuple[str, ...] = (program, str(settings))
        kind = Path(program).name
    else:
        arguments = (sys.executable, "-m", "instar.embedded.fake_broker", "--port", str(port))
        kind = "portable"
    command = Command(
        arguments,
        {**environment, PASSWORD_VARIABLE: password},
        health=lambda _pid: ask_redis(port, password),
    )
    return Broker(kind, port, f"redis://:{quote(password, safe='')}@127.0.0.1:{port}/0", command)
