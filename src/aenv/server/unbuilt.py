"""Known routes that this version does not serve: 501 with what is missing, never 404."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from aenv.models.errors import NotBuiltYetError

BUILDS = "builds from an image that the client pushes are not served; use POST /v3/templates"
SECRETS = "secrets are not built yet"
TEAMS = "teams are not built yet"
KEYS = "managing API keys over the API is not built yet"
ADMIN = "this admin route is not built yet"

ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/templates", BUILDS),
    ("POST", "/templates/{templateID}", BUILDS),
    ("POST", "/templates/{templateID}/builds/{buildID}", BUILDS),
    ("GET", "/secrets", SECRETS),
    ("POST", "/secrets", SECRETS),
    ("GET", "/secrets/{secretID}", SECRETS),
    ("POST", "/secrets/{secretID}", SECRETS),
    ("DELETE", "/secrets/{secretID}", SECRETS),
    ("GET", "/teams", TEAMS),
    ("GET", "/teams/{teamID}/metrics", TEAMS),
    ("GET", "/teams/{teamID}/metrics/max", TEAMS),
    ("GET", "/api-keys", KEYS),
    ("POST", "/api-keys", KEYS),
    ("PATCH", "/api-keys/{apiKeyID}", KEYS),
    ("DELETE", "/api-keys/{apiKeyID}", KEYS),
    ("POST", "/access-tokens", KEYS),
    ("DELETE", "/access-tokens/{accessTokenID}", KEYS),
    ("POST", "/nodes/{nodeID}", ADMIN),
)


def router() -> APIRouter:
    found = APIRouter(tags=["not built yet"])
    for method, path, missing in ROUTES:
        found.add_api_route(
            path,
            _refusing(missing),
            methods=[method],
            status_code=501,
            response_model=None,
            include_in_schema=False,
        )
    return found


def _refusing(missing: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise NotBuiltYetError(missing)

    return refuse
