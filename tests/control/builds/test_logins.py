from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import httpx
import pytest
from tests.control.builds.yards import Yard

from aenv.control.builds import logins
from aenv.control.builds.logins import AmazonKeys
from aenv.control.builds.service import BuildStatus
from aenv.models.errors import InvalidRequestError, TemplateBuildError
from aenv.models.registries import RegistryLogin
from aenv.models.templates import ImageFacts, TemplateInfo

KEYS = AmazonKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1")


def test_requests_to_amazon_are_signed() -> None:
    """The signature was computed by botocore's signer for the same request."""
    now = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
    headers = logins.signed(KEYS, "api.ecr.us-east-1.amazonaws.com", b"{}", now)
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/ecr/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date;x-amz-target, "
        "Signature=527a2155e9afc2426cb4c659023df9c031e8103458f349819615ff25111f5de0"
    )


async def test_amazons_password_is_asked_for() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        token = base64.b64encode(b"AWS:pass:word").decode()
        return httpx.Response(200, json={"authorizationData": [{"authorizationToken": token}]})

    found = await logins.resolved(KEYS, httpx.MockTransport(answer))
    assert found == RegistryLogin("AWS", "pass:word")
    assert seen[0].url == "https://api.ecr.us-east-1.amazonaws.com/"
    assert seen[0].headers["x-amz-target"].endswith("GetAuthorizationToken")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(400, json={"__type": "UnrecognizedClientException", "message": "bad"}),
        httpx.Response(200, json={"authorizationData": []}),
        httpx.Response(200, text="no json"),
        httpx.Response(503, text="no json"),
        httpx.Response(200, json=[1]),
    ],
)
async def test_keys_that_are_not_taken(answer: httpx.Response) -> None:
    with pytest.raises(TemplateBuildError) as refused:
        await logins.resolved(KEYS, httpx.MockTransport(lambda _: answer))
    assert KEYS.secret not in str(refused.value)


def test_logins_are_read_and_keep_silent() -> None:
    key = json.dumps({"private_key": "secret", "client_email": "x"})
    assert logins.google(key) == RegistryLogin("_json_key", key)
    for wrong in ("", "[]", "{}", "nonsense"):
        with pytest.raises(InvalidRequestError):
            logins.google(wrong)
    for region in ("", "us", "evil.example.com/", "us-east-1.x"):
        with pytest.raises(InvalidRequestError):
            logins.amazon("a", "b", region)
    assert "secret" not in repr(RegistryLogin("u", "secret"))
    assert "wJalr" not in repr(KEYS)


async def test_a_login_goes_with_the_pull_and_into_nothing_else(yard: Yard) -> None:
    login = RegistryLogin("me", "the-password")
    name = "h.example/private:1"
    build = await yard.build(template=None, image=name, login=login)
    assert build.status is BuildStatus.ERROR  # the fake has no such image, and was asked
    image = ImageFacts(user="root", workdir="/")
    yard.node.infos[name] = TemplateInfo(name, "d", 1, 1.0, image=image)
    build = await yard.build(template=None, image=name, login=login)
    assert build.status is BuildStatus.READY
    assert yard.node.logins == [login, login], "also when it is there"
    log = "".join(await yard.said(build))
    assert "the-password" not in log
    for path in yard.root.rglob("*"):
        if path.is_file():
            assert b"the-password" not in path.read_bytes(), path
