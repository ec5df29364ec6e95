"""The API process: no torch, no side effects of importing, problems that say what to do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from instar import api
from instar.api.app import create_app, is_loopback
from instar.api.auth import authenticate
from instar.api.declared import PUBLIC
from instar.api.limits import BodyLimit
from instar.settings import Settings

HEAVY = ("torch", "transformers", "sentence_transformers", "litellm", "reasoning_gym", "scipy")


def test_the_api_process_loads_no_model_library() -> None:
    code = (
        "import sys\n"
        "from instar.api.app import create_app\n"
        "from instar.settings import Settings\n"
        "app = create_app(Settings(app_database_url='postgresql://instar_app@localhost/x'))\n"
        "app.openapi()\n"
        "from fastapi.testclient import TestClient\n"
        "with TestClient(app, 'http://127.0.0.1') as client:\n"
        "    assert client.get('/healthz').status_code == 200\n"
        "    assert client.get('/version').status_code == 200\n"
        "    assert client.get('/v1/agents').status_code == 401\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_uvicorn_finds_the_application_by_its_usual_name() -> None:
    code = (
        "from uvicorn.importer import import_from_string as find\n"
        "print(type(find('instar.api.app:app')).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "FastAPI"


def test_routes_stay_thin() -> None:
    """At most fifteen statements' lines each, docstring and signature not counted."""
    for path in sorted((Path(api.__file__).parent / "routes").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                first, last = node.body[0], node.body[-1]
                assert (last.end_lineno or 0) - first.lineno < 15, (path.name, node.name)


def test_a_database_that_is_away_is_a_503_with_the_remedy_and_no_address() -> None:
    url = "postgresql://instar_app:hidden-word@127.0.0.1:9/gone"
    app = create_app(Settings(app_database_url=url))
    with TestClient(app, "http://127.0.0.1") as client:
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503
        answer = client.get("/v1/agents", headers={"Authorization": "Bearer instar_x"})
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["Retry-After"]
        assert "hidden-word" not in answer.text + ready.text


def test_importing_the_module_makes_no_application() -> None:
    code = "import instar.api.app as m; print('app' in vars(m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_api_without_a_database_url_says_how_to_get_one() -> None:
    import asyncio

    from instar_core.errors import PrerequisiteError

    app = create_app(Settings(app_database_url=None))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError("it started")

    with pytest.raises(PrerequisiteError, match="INSTAR_APP_DATABASE_URL"):
        asyncio.run(start())


def test_every_v1_route_authenticates() -> None:
    app = create_app(Settings(app_database_url="postgresql://instar_app@localhost/x"))
    for path, methods in app.openapi()["paths"].items():
        for operation in methods.values():
            asks = path.startswith("/v1") and path not in PUBLIC
            assert bool(operation.get("security")) is asks, path
    assert authenticate is not None


def test_a_body_that_grows_beyond_the_limit_is_refused() -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.testclient import TestClient

    async def read(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    inner = Starlette(routes=[Route("/", read, methods=["POST"])])
    client = TestClient(BodyLimit(inner, limit=10))
    assert client.post("/", content=b"x" * 10).text == "10"
    assert client.post("/", content=b"x" * 11).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(5):
            yield b"xxxx"

    assert client.post("/", content=pieces()).status_code == 413
