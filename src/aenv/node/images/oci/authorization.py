"""How a registry is told who asks: Basic, or a token from the service it names."""

from __future__ import annotations

import re
from base64 import b64encode

import httpx

from aenv.models.errors import TemplateBuildError
from aenv.node.images.oci.credentials import Credentials

_PARAMETER = re.compile(r'([a-zA-Z_]+)="?((?<=")[^"]*|[^",\s]*)"?')
_LONGEST = 64 << 10


class LoginError(TemplateBuildError):
    """A registry's token service refuses the credentials, or is not to be trusted with them."""

    code = "registry_login_failed"


class Authorizer:
    """``header`` is what the last challenge asked for; see the distribution project's token
    specification.
    """

    def __init__(
        self, client: httpx.AsyncClient, credentials: Credentials | None, repository: str
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._scope = f"repository:{repository}:pull"
        self._header: dict[str, str] = {}

    def header(self) -> dict[str, str]:
        return self._header

    async def answer(self, asked: httpx.URL, challenge: str) -> None:
        """Raises LoginError."""
        scheme, _, rest = challenge.partition(" ")
        self._header = {}
        if scheme.lower() == "basic" and self._credentials is not None:
            self._header = {"authorization": _basic(self._credentials)}
        elif scheme.lower() == "bearer":
            token = await self._token(asked, dict(_PARAMETER.findall(rest)))
            self._header = {"authorization": f"Bearer {token}"}

    async def _token(self, asked: httpx.URL, parameters: dict[str, str]) -> str:
        try:
            realm = asked.join(parameters["realm"])
        except (KeyError, httpx.InvalidURL) as error:
            raise LoginError("the registry names no token service") from error
        if realm.scheme != "https" and (realm.scheme != "http" or asked.scheme == "https"):
            raise LoginError(f"the registry's token service {realm.host} is not reached by HTTPS")
        if self._credentials is not None and self._credentials.registry_token:
            return self._credentials.registry_token
        form = {"scope": parameters.get("scope") or self._scope}
        if service := parameters.get("service"):
            form["service"] = service
        answer = await self._ask(realm, form)
        if answer.status_code != 200 or len(answer.content) > _LONGEST:
            raise LoginError(
                f"the token service {realm.host} refuses (HTTP {answer.status_code}); check the "
                "credentials for this registry"
            )
        try:
            body = answer.json()
            return str(body.get("token") or body["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise LoginError(f"the token service {realm.host} answers no token") from error

    async def _ask(self, realm: httpx.URL, form: dict[str, str]) -> httpx.Response:
        own = self._credentials
        if own is not None and own.identity_token:
            body = {
                **form,
                "grant_type": "refresh_token",
                "client_id": "aenv",
                "refresh_token": own.identity_token,
            }
            return await self._client.post(realm, data=body)
        headers = {"authorization": _basic(own)} if own is not None else {}
        return await self._client.get(realm.copy_merge_params(form), headers=headers)


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.user}:{credentials.password}".encode()
    return "Basic " + b64encode(pair).decode()
