"""Logs: every record of this process is redacted when it is made, whoever handles it later.

A filter on handlers would miss those that Celery, uvicorn or a library add afterwards; the factory
of records comes before all of them. Tracebacks that end a process or a thread are redacted too.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from instar.redaction.mask import redact_log

__all__ = ["install_log_redaction"]

_ACCESS = "uvicorn.access"
_formatter = logging.Formatter()


class _RedactingFactory:
    """Makes records by another factory and takes secrets out of them."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*arguments, **named)
        try:
            _redact_record(record)
        except Exception as error:  # noqa: BLE001 - a record that cannot be read must not be shown
            record.msg = f"(a log record could not be redacted: {type(error).__name__})"
            record.args, record.exc_info, record.exc_text = (), None, None
        return record


def _redact_record(record: logging.LogRecord) -> None:
    if record.name == _ACCESS and isinstance(record.args, tuple) and len(record.args) == 5:
        # Its formatter takes the five arguments apart; they are texts and a number.
        record.args = tuple(redact_log(one) if isinstance(one, str) else one for one in record.args)
    else:
        said = _message(record)
        shown = redact_log(said)
        if shown != said:
            record.msg, record.args = shown, ()
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        # Formatters use this text where there is one.
        record.exc_text = redact_log(_formatter.formatException(record.exc_info))
    if record.stack_info:
        record.stack_info = redact_log(record.stack_info)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        # Wrong arguments: logging itself reports that, with the raw message.
        return f"{record.msg} {record.args!r}"


def install_log_redaction() -> None:
    """Redacts all records and last tracebacks of this process from now on; safe to call twice."""
    present = logging.getLogRecordFactory()
    if isinstance(present, _RedactingFactory):
        return
    logging.setLogRecordFactory(_RedactingFactory(present))
    sys.excepthook = _last_words
    threading.excepthook = _last_words_of_thread


def _last_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    text = "".join(traceback.format_exception(kind, error, trace))
    print(redact_log(text), file=sys.stderr, end="", flush=True)


def _last_words_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_type is SystemExit or sys.stderr is None:
        return
    name = arguments.thread.name if arguments.thread is not None else "?"
    text = "".join(
        traceback.format_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
    )
    print(redact_log(f"Exception in thread {name}:\n{text}"), file=sys.stderr, end="", flush=True)
