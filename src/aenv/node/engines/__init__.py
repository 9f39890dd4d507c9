"""The engines of this host, by name: ``gvisor`` (a kernel of its own) and ``process`` (no
isolation).

Only the engine asked for is imported. May import ``node`` (host, network, disks, supervisor,
runsc) and ``models``.
"""

from __future__ import annotations

import sys

from aenv.models.errors import InvalidRequestError
from aenv.models.settings import ENGINES, Settings
from aenv.node.engine import Engine

GVISOR, PROCESS = ENGINES


def available() -> tuple[str, ...]:
    """Names of the engines this platform knows, the default first; whether one is set up is
    :meth:`Engine.probe`'s.
    """
    return (GVISOR, PROCESS) if sys.platform == "linux" else (PROCESS,)


def create_engine(name: str, settings: Settings) -> Engine:
    """The engine called ``name`` for the server instance of ``settings``; nothing is touched
    before its ``start``.
    """
    if name not in available():
        known = ", ".join(available())
        raise InvalidRequestError(f"unknown engine {name!r} on {sys.platform}; known here: {known}")
    if name == GVISOR:
        from aenv.node.engines.gvisor.engine import GVisorEngine

        return GVisorEngine(settings)
    from aenv.node.engines.process.engine import ProcessEngine

    return ProcessEngine(settings)
