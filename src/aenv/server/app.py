"""The control plane as an ASGI application over one system."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

import aenv
from aenv.control.system import System
from aenv.server import errors, unbuilt
from aenv.server.auth import Authenticated
from aenv.server.middleware import Limited, Observed
from aenv.server.openapi import document_of
from aenv.server.routers import (
    builds,
    lifecycles,
    observations,
    operations,
    sandboxes,
    snapshots,
    storage,
    tags,
    templates,
    volumes,
)

ORDER = (
    sandboxes.router,
    lifecycles.router,
    snapshots.router,
    observations.router,
    operations.router,
    storage.router,
    builds.router,
    tags.router,
    volumes.router,
)


def create_app(system: System) -> FastAPI:
    """Routes, errors and middleware; the system is opened and closed by the caller."""
    app = _routes()
    app.state.system = system
    errors.install(app)
    app.add_middleware(Limited)
    app.add_middleware(Authenticated, keys=system.keys)
    app.add_middleware(Observed, telemetry=system.telemetry, activity=system.activity)
    return app


def document() -> dict[str, Any]:
    """The OpenAPI document, without a system."""
    return document_of(_routes())


def _routes() -> FastAPI:
    app = FastAPI(
        title="aenv",
        version=aenv.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ORDER:
        app.include_router(router)
    app.include_router(unbuilt.router())
    app.include_router(templates.router)
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    return app
