"""Logins as docker and podman keep them."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from aenv.models.errors import HostSetupError
from aenv.node.images.oci.credentials import Credentials, find


def pair(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return {"HOME": str(tmp_path)}


def write(tmp_path: Path, config: Any, name: str = ".docker/config.json") -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))


def helper(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / f"tools/docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_nobody_is_logged_in(env: dict[str, str]) -> None:
    assert find("ghcr.io", env) is None


@pytest.mark.parametrize("key", ["ghcr.io", "https://ghcr.io", "https://ghcr.io/v1/"])
def test_a_login_in_the_file(env: dict[str, str], tmp_path: Path, key: str) -> None:
    write(tmp_path, {"auths": {key: {"auth": pair("ann:a:b")}}})

    assert find("ghcr.io", env) == Credentials("ann", "a:b")
    assert find("quay.io", env) is None


def test_docker_hub_has_a_name_of_its_own(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": pair("ann:pw")}}})

    assert find("docker.io", env) == Credentials("ann", "pw")


def test_tokens(env: dict[str, str], tmp_path: Path) -> None:
    entries = {"a.io": {"identitytoken": "id"}, "b.io": {"registrytoken": "reg"}}
    write(tmp_path, {"auths": entries})

    assert find("a.io", env) == Credentials(identity_token="id")
    assert find("b.io", env) == Credentials(registry_token="reg")


def test_podmans_file(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, {"auths": {"a.io": {"auth": pair("u:p")}}}, ".config/containers/auth.json")

    assert find("a.io", env) == Credentials("u", "p")


def test_a_helper_is_asked_for_its_registry(env: dict[str, str], tmp_path: Path) -> None:
    helper(tmp_path, "ecr", """read r; echo "{\\"Username\\":\\"AWS\\",\\"Secret\\":\\"$r\\"}" """)
    write(tmp_path, {"credHelpers": {"1.ecr.aws": "ecr"}})

    assert find("1.ecr.aws", env) == Credentials("AWS", "1.ecr.aws")
    assert find("2.ecr.aws", env) is None


def test_a_store_may_hold_tokens_or_nothing(env: dict[str, str], tmp_path: Path) -> None:
    script = (
        """read r; case $r in a.io) echo '{"Username":"<token>","Secret":"t"}';; *) exit 1;; esac"""
    )
    helper(tmp_path, "pass", script)
    write(tmp_path, {"credsStore": "pass", "auths": {"b.io": {"auth": pair("u:p")}}})

    assert find("a.io", env) == Credentials(identity_token="t")
    assert find("b.io", env) == Credentials("u", "p")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "cannot be read"),
        ({"auths": {"a.io": {"auth": "%%%"}}}, "docker login"),
        ({"credsStore": "../../bin/sh"}, "no name of a credential helper"),
        ({"credsStore": "absent"}, "not installed"),
        ({"credsStore": "broken"}, "answers no credentials"),
    ],
)
def test_what_is_broken_is_named(
    env: dict[str, str], tmp_path: Path, config: Any, said: str
) -> None:
    helper(tmp_path, "broken", "echo nonsense")
    write(tmp_path, config)

    with pytest.raises(HostSetupError, match=said):
        find("a.io", env)
