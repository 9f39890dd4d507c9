"""The OpenAPI document: what FastAPI derives from the routes, and what it cannot know."""

from __future__ import annotations

from typing import Any, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from aenv.server.errors import ErrorReply

Responses: TypeAlias = dict[int | str, dict[str, Any]]

_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}


def fails(*statuses: int) -> Responses:
    """The error answers of a route besides 400, 401 and 500, by reference: given as a model,
    FastAPI would build a validator for each of them.
    """
    return {status: {"content": _ERROR} for status in (400, 401, *statuses, 500)}


def document_of(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, told that invalid requests get 400, and how the key is sent."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if path != "/health":
                    operation["security"] = [{"ApiKey": []}]
        schema["components"]["securitySchemes"] = {
            "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        }
        models = schema["components"]["schemas"]
        models.setdefault("ErrorReply", ErrorReply.model_json_schema())
        for name in ("HTTPValidationError", "ValidationError"):
            models.pop(name, None)
        app.openapi_schema = schema
    return app.openapi_schema
