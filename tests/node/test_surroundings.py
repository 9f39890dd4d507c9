from __future__ import annotations

from pathlib import Path

import pytest

from aenv.node import surroundings
from aenv.node.surroundings import of_this_host
from aenv.node.workbench import APT_CONF, APT_SOURCES, FOLDER


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Host names and their addresses; others have none."""
    known: dict[str, str] = {}

    def look_up(host: str, port: int, *_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise OSError("no such name")
        return [(0, 0, 0, "", (known[host], port))]

    monkeypatch.setattr(surroundings.socket, "getaddrinfo", look_up)
    return known


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_host_without_configuration_gives_nothing(tmp_path: Path) -> None:
    found = of_this_host({}, tmp_path)
    assert (dict(found.env), dict(found.files), found.openings, found.notes) == ({}, {}, (), ())


def test_pip_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    write(tmp_path, "etc/pip.conf", "[global]\nindex-url = https://a/simple\ntimeout = 9\n")
    write(
        tmp_path,
        "home/me/.config/pip/pip.conf",
        "[install]\nextra-index-url =\n  https://b\n  https://c\n",
    )
    env = {"HOME": "/home/me", "PIP_TRUSTED_HOST": "a", "PIP_FIND_LINKS": "/opt/wheels"}
    assert dict(of_this_host(env, tmp_path).env) == {
        "PIP_INDEX_URL": "https://a/simple",
        "PIP_EXTRA_INDEX_URL": "https://b https://c",
        "PIP_TRUSTED_HOST": "a",
    }
    named = of_this_host({**env, "PIP_INDEX_URL": "https://z"}, tmp_path)
    assert named.env["PIP_INDEX_URL"] == "https://z"


def test_npm_is_told_where_to_go_and_nothing_else(tmp_path: Path) -> None:
    write(
        tmp_path,
        "root/.npmrc",
        "registry=https://r/\n//r/:_authToken=secret\n@team:registry=https://t/\n"
        "fund=false\n# x=y\n",
    )
    found = of_this_host({"npm_config_strict_ssl": "false"}, tmp_path)
    assert found.env["NPM_CONFIG_USERCONFIG"] == f"{FOLDER}/npmrc"
    assert found.files["npmrc"].decode().splitlines() == [
        "registry=https://r/",
        "//r/:_authToken=secret",
        "@team:registry=https://t/",
        "strict-ssl=false",
    ]
    assert "secret" not in repr(found)


def test_proxies_and_the_ca_reach_all_tools(tmp_path: Path, names: dict[str, str]) -> None:
    names["proxy.corp"] = "10.1.2.3"
    write(tmp_path, "etc/ssl/certs/ca-certificates.crt", "CA")
    write(tmp_path, "etc/apt/sources.list", "deb http://deb.debian.org/debian bookworm main\n")
    env = {"HTTPS_PROXY": "http://proxy.corp:3128", "no_proxy": "localhost"}
    found = of_this_host(env, tmp_path)
    assert found.env["https_proxy"] == found.env["HTTPS_PROXY"] == "http://proxy.corp:3128"
    assert found.env["NO_PROXY"] == "localhost"
    assert found.env["PIP_CERT"] == found.env["NODE_EXTRA_CA_CERTS"] == f"{FOLDER}/ca.crt"
    assert found.files["ca.crt"] == b"CA"
    conf = found.files[APT_CONF].decode()
    assert 'Acquire::https::Proxy "http://proxy.corp:3128";' in conf
    assert found.files[APT_SOURCES].startswith(b"deb http://deb.debian.org/debian @SUITE@ main")
    assert found.openings == ("10.1.2.3/32:3128",)


def test_only_private_addresses_that_are_named_are_opened(
    tmp_path: Path, names: dict[str, str]
) -> None:
    names.update(
        {"mirror": "192.168.7.7", "public": "8.8.8.8", "here": "127.0.0.1", "other": "10.9.9.9"}
    )
    env = {
        "PIP_INDEX_URL": "https://user:word@mirror:8443/simple",
        "PIP_EXTRA_INDEX_URL": "https://public/simple http://here:3141/x https://[broken",
    }
    found = of_this_host(env, tmp_path)
    assert found.openings == ("192.168.7.7/32:8443",)
    assert len(found.notes) == 1
    assert "here:3141" in found.notes[0]
