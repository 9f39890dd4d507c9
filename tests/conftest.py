"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A script's background jobs start with Ctrl-C ignored, and so would all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
