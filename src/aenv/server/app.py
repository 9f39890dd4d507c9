"""The control plane as an ASGI application over one system."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

import aenv
from aenv.control.system import System
from aenv.server import errors, unbuilt
from aenv.server.auth import Authenticated
from aenv.server.middleware import Limited, Observed
from aenv.server.routers import (
    lifecycles,
    observations,
    operations,
    sandboxes,
    snapshots,
    templates,
)

ORDER = (
    sandboxes.router,
    lifecycles.router,
    snapshots.router,
    observations.router,
    operations.router,
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
    return _openapi(_routes())


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
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, told that invalid requests get 400, and how the key is sent."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path, operations_ in schema["paths"].items():
            for operation in operations_.values():
                operation["responses"].pop("422", None)
                if path != "/health":
                    operation["security"] = [{"ApiKey": []}]
        schema["components"]["securitySchemes"] = {
            "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        }
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        app.openapi_schema = schema
    return app.openapi_schema
