"""Structured logs: one JSON object a line, with run, stage and shard beside the message, and secrets masked."""

import json
import logging
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOGGER = "editfoundry.run"
CONTEXT = ("run", "worker", "stage", "shard", "ids")
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_MIN_SECRET = 6


class JsonLines(logging.Formatter):
    """Formats a record as canonical JSON; values of secret-looking environment variables are replaced by ***."""

    def __init__(self, run: str, worker: str) -> None:
        super().__init__()
        self.base = {"run": run, "worker": worker}
        self.secrets = sorted((value for name, value in os.environ.items()
                               if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET), key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "message": record.getMessage(), **self.base,
        }
        entry.update({key: getattr(record, key) for key in CONTEXT if hasattr(record, key)})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        line = json.dumps(entry, sort_keys=True, ensure_ascii=False, default=str)
        for secret in self.secrets:
            line = line.replace(secret, "***")
        return line


class RunLog(logging.FileHandler):
    """A log file whose errors are errors: a full disk stops the run, instead of printing a traceback a line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        raise  # what emit is just handling


def open_log(folder: Path, worker: str) -> logging.Logger:
    """The run's logger, writing to `folder/<worker>.jsonl` only. Calling it again moves it to the new file."""
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(LOGGER)
    close_log()
    handler = RunLog(folder / f"{worker}.jsonl", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(JsonLines(folder.parent.name, worker))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


def close_log() -> None:
    """Flush and detach the run's log file."""
    logger = logging.getLogger(LOGGER)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def run_log() -> logging.Logger:
    """The logger of the run in this process; silent until `open_log` was called."""
    logger = logging.getLogger(LOGGER)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
