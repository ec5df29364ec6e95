"""``python -m instar.engine``: serves the packaged open model until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from instar.settings import load_settings, prepare_process

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Reads settings and options, then serves."""
    settings = load_settings()
    engine = settings.engine
    parser = argparse.ArgumentParser(prog="python -m instar.engine", description=__doc__)
    parser.add_argument("--host", default=engine.host)
    parser.add_argument("--port", type=int, default=engine.port)
    parser.add_argument("--threads", type=int, default=engine.threads)
    parser.add_argument("--max-batch", type=int, default=engine.max_batch)
    parser.add_argument("--exact", action="store_true", default=engine.exact)
    parser.add_argument("--data-dir", type=Path, default=settings.data_dir)
    options = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    prepare_process()

    import uvicorn

    from instar.engine.app import create_app
    from instar.engine.host import EngineConfig

    config = EngineConfig(
        data_dir=options.data_dir,
        threads=options.threads,
        max_batch=options.max_batch,
        exact=options.exact,
        dtype=engine.dtype,
        context=engine.context,
        max_waiting=engine.max_waiting,
        prefix_cache_mb=engine.prefix_cache_mb,
    )
    uvicorn.run(
        create_app(config),
        host=options.host,
        port=options.port,
        log_level="warning",
        timeout_graceful_shutdown=30,
        backlog=2048,
    )


if __name__ == "__main__":
    main()
