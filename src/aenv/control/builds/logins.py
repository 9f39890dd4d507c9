"""Logins to registries, as E2B's builds name them: a user and password, or keys of a cloud.

A Google service account logs in with its JSON key as it is; Amazon's registries take a password
that is asked for with the keys, by a request signed as Signature Version 4 says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx

from aenv.models.errors import InvalidRequestError, TemplateBuildError
from aenv.models.registries import RegistryLogin

GOOGLE_USER = "_json_key"
TIMEOUT = 30.0
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]\Z")
_TARGET = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
_SERVICE = "ecr"


@dataclass(frozen=True, slots=True)
class AmazonKeys:
    """What a password of Amazon's registries in one region is asked for with."""

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    region: str


Login = RegistryLogin | AmazonKeys


def google(service_account: str) -> RegistryLogin:
    """InvalidRequestError when it is no JSON key."""
    try:
        found = json.loads(service_account)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "private_key" not in found:
        raise InvalidRequestError(
            "fromImageRegistry.serviceAccountJson: no JSON key of a service account"
        )
    return RegistryLogin(GOOGLE_USER, service_account)


def amazon(key_id: str, secret: str, region: str) -> AmazonKeys:
    if not _REGION.match(region):
        raise InvalidRequestError("fromImageRegistry.awsRegion: no region, as in eu-west-1")
    return AmazonKeys(key_id, secret, region)


async def resolved(
    login: Login, transport: httpx.AsyncBaseTransport | None = None
) -> RegistryLogin:
    """TemplateBuildError when the keys are not taken."""
    if isinstance(login, RegistryLogin):
        return login
    host = f"api.ecr.{login.region}.amazonaws.com"
    body = b"{}"
    headers = signed(login, host, body, datetime.now(UTC))
    try:
        async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT) as http:
            answer = await http.post(f"https://{host}/", content=body, headers=headers)
    except httpx.HTTPError as error:
        raise TemplateBuildError(f"Amazon's registry does not answer: {error!r}") from error
    return _read(answer)


def signed(keys: AmazonKeys, host: str, body: bytes, now: datetime) -> dict[str, str]:
    """The headers of the request (Signature Version 4)."""
    stamp, day = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}"
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "host": host,
        "x-amz-date": stamp,
        "x-amz-target": _TARGET,
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{day}/{keys.region}/{_SERVICE}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{keys.secret}".encode()
    for part in (day, keys.region, _SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={keys.key_id}/{scope}"
    return {
        **headers,
        "authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, "
        f"Signature={signature}",
    }


def _read(answer: httpx.Response) -> RegistryLogin:
    try:
        found = answer.json()
        if answer.is_error:
            said = str(found.get("message") or found.get("__type") or answer.status_code)
            raise TemplateBuildError(f"Amazon's registry refuses the keys: {said[:300]}")
        token = found["authorizationData"][0]["authorizationToken"]
        user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, binascii.Error) as error:
        raise TemplateBuildError("Amazon's registry answers no password") from error
    return RegistryLogin(user, password)
