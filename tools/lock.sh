#!/usr/bin/env bash
# Resolves every dependency, the dev group and the `local` extra into requirements.lock. torch and what
# only torch brings are left out: setup installs torch first, in its own step.
set -euo pipefail
links="${PIP_FIND_LINKS:-}"
.venv/bin/uv pip compile pyproject.toml --extra local --group dev --quiet --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links ${links:+--find-links "$links"} \
  --no-emit-package torch --python-version 3.11 "$@" -o requirements.lock
sed -i '1i # Made by `make lock`; do not edit. torch==2.13.0 is installed before this file (tools/setup.sh).' requirements.lock
