"""Selfcheck: evolvers on worlds with a known answer, so that a claimed gain can be called false."""

from instar_evolvers.selfcheck.report import run_selfcheck

__all__ = ["run_selfcheck"]
