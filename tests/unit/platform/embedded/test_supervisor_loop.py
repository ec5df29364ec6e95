"""The supervisor's loop over real child processes: order, restarts, back-off, first failures."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from instar.embedded.layout import Layout
from instar.embedded.status import Status, read_status
from instar.embedded.up import plan_services
from instar.settings import Settings

PROGRAM = """
import os, signal, sys
from pathlib import Path
from instar.embedded.checks import Answer
from instar.embedded.layout import Layout
from instar.embedded.services import Command, CommandService, OneShot
from instar.embedded.status import Status
from instar.embedded.supervisor import Supervisor, SupervisorOptions
from instar_core.errors import InstarError

folder = Path(sys.argv[1])

def service(name, script, after=(), required=True, kind=CommandService, answer=Answer(True, True)):
    # The folder's trace has one line per start; a running service has made its file.
    body = f"open({str(folder / 'trace')!r}, 'a').write('{name} ')\\n" + script
    command = Command((sys.executable, "-c", body), dict(os.environ), lambda pid: answer)
    return kind(name, command, after=after, log=folder / f"{name}.log", required=required)

LIVE = "import time; time.sleep(600)"
"""


def supervise(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Runs a supervisor over the services that ``body`` lists, in a process of its own."""
    ending = """
    options = SupervisorOptions(tick_s=0.01, health_s=0.05, start_timeout_s=20, first_pause_s=0.02,
                                longest_pause_s=0.05)
    def ready(status):
        (folder / "ready").write_text(status.state)
        if stop_when_ready:
            os.kill(os.getpid(), signal.SIGTERM)
    try:
        Supervisor(services, Layout(folder), Status(state="starting"), options, ready).run()
    except InstarError as error:
        print(error)
        sys.exit(1)
    """
    program = PROGRAM + textwrap.dedent(body) + textwrap.dedent(ending)
    return subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )


def last(tmp_path: Path) -> Status:
    status = read_status(tmp_path / "status.json")
    assert status is not None
    return status


def test_starts_in_order_and_stops_everybody(tmp_path: Path) -> None:
    done = supervise(
        tmp_path,
        """
        stop_when_ready = True
        services = [
            service("third", LIVE, after=("second", "first")),
            service("second", "pass", after=("first",), kind=OneShot),
            service("first", LIVE),
        ]
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ready").read_text() == "ready"
    status = last(tmp_path)
    assert status.state == "stopped"
    assert {item.state for item in status.services} == {"stopped"}
    started = (tmp_path / "trace").read_text().split()
    assert started.index("first") < started.index("second")


def test_s123_nothing_that_needs_the_schema_starts_before_its_step_is_done(tmp_path: Path) -> None:
    done = supervise(
        tmp_path,
        """
        stop_when_ready = True
        schema, up, early = folder / "schema", folder / "up", folder / "early"
        step = f"import time; time.sleep(0.3); open({str(schema)!r}, 'w').close()"
        api = f"import os, time; open({str(early)!r} if not os.path.exists({str(schema)!r}) else "
        api += f"{str(up)!r}, 'w').close(); time.sleep(600)"
        command = Command((sys.executable, "-c", api), dict(os.environ),
                          lambda pid: Answer(True, up.exists() or early.exists()))
        services = [
            CommandService("api", command, after=("install",), log=folder / "api.log"),
            service("install", step, kind=OneShot),
        ]
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "up").exists() and not (tmp_path / "early").exists()


def test_s123_the_service_waits_with_all_of_its_own_for_the_schema(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.prepare()
    planned = plan_services(Settings(data_dir=layout.data_dir), layout, layout.ensure_secrets())
    after = {service.name: service.after for service in planned}
    assert after["install"] == ("postgres",)
    for name in ("api", "worker", "reconciler"):
        assert {"postgres", "install"} <= set(after[name]), name


def test_a_step_that_fails_ends_the_start_with_its_words(tmp_path: Path) -> None:
    done = supervise(
        tmp_path,
        """
        stop_when_ready = False
        services = [
            service("first", LIVE),
            service("step", "import sys; sys.exit('error: the schema is newer. Upgrade.')",
                    after=("first",), kind=OneShot),
            service("never", LIVE, after=("step",)),
        ]
        """,
    )
    assert done.returncode == 1
    assert "step ended with status 1: the schema is newer. Upgrade." in done.stdout
    status = last(tmp_path)
    assert status.state == "failed" and "the schema is newer" in status.error
    assert not (tmp_path / "never.log").exists()
    assert not (tmp_path / "ready").exists()


def test_a_service_that_dies_at_once_ends_the_first_start(tmp_path: Path) -> None:
    done = supervise(
        tmp_path,
        """
        stop_when_ready = False
        services = [
            service("bad", "raise ImportError('no such part')", answer=Answer(False)),
        ]
        """,
    )
    assert done.returncode == 1
    assert "bad ended with status 1: ImportError: no such part" in done.stdout
    assert (tmp_path / "trace").read_text().split() == ["bad"] * 3, "two more tries, no more"


def test_an_optional_service_may_keep_failing(tmp_path: Path) -> None:
    done = supervise(
        tmp_path,
        """
        stop_when_ready = True
        services = [
            service("extra", "raise SystemExit(7)", required=False, answer=Answer(False)),
            service("main", LIVE),
        ]
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ready").read_text() == "ready"


def test_what_a_waiting_service_says_is_shown(tmp_path: Path) -> None:
    done = supervise(
        tmp_path,
        """
        stop_when_ready = True
        services = [
            service("model", LIVE, required=False, answer=Answer(True, False, "no model")),
            service("main", LIVE, after=()),
        ]
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    model = last(tmp_path).service("model")
    assert model is not None and model.last_error == "no model"
    assert (tmp_path / "ready").read_text() == "ready"
    assert model.restarts == 0


def test_a_service_that_dies_is_started_again(tmp_path: Path) -> None:
    """The child kills itself until its fourth start; then the supervisor is told to stop."""
    script = (
        "import os, signal, time\n"
        f"text = open({str(tmp_path / 'trace')!r}).read()\n"
        "if text.split().count('phoenix') >= 4: os.kill(os.getppid(), signal.SIGTERM)\n"
        f"while not os.path.exists({str(tmp_path / 'ready')!r}): time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if text.split().count('phoenix') < 4 else None\n"
        "time.sleep(600)\n"
    )
    done = supervise(
        tmp_path,
        f"""
        stop_when_ready = False
        services = [service("phoenix", {script!r})]
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    phoenix = last(tmp_path).service("phoenix")
    assert phoenix is not None
    assert phoenix.restarts == 3
    assert phoenix.last_error == "was killed by SIGKILL"
    assert os.path.exists(tmp_path / "phoenix.log")
