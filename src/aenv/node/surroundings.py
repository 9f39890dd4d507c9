"""How this host reaches its package registries, for builds that should do as it does.

Read are pip's and npm's configuration, the APT sources of a Debian host, proxy variables and the CA
bundle. What a build is given of them is variables, and files in a folder of its memory that no
image holds; and the way to exactly the private addresses that they name.
"""

from __future__ import annotations

import configparser
import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from aenv.models.egress import is_private
from aenv.models.errors import HostSetupError
from aenv.node.images.apt_sources import debian_sources
from aenv.node.workbench import APT_CONF, APT_SOURCES, FOLDER, SUITE, Surroundings

CA, NPMRC = "ca.crt", "npmrc"
SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy")
_PASSED_ON = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_DEFAULTS = (
    "https://pypi.org/simple",
    "https://files.pythonhosted.org",
    "https://registry.npmjs.org",
)
_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def of_this_host(env: Mapping[str, str], root: Path = Path("/")) -> Surroundings:
    """Blocks: it reads files and asks the resolver."""
    home = root / Path(env.get("HOME", "/root")).relative_to("/")
    variables, files, urls = {}, {}, list(_DEFAULTS)
    pip = _pip(env, root, home)
    for key, value in pip.items():
        variables["PIP_" + key.upper().replace("-", "_")] = value
        urls += value.split() if key.endswith("url") or key == "proxy" else []
    npm = _npm(env, root, home)
    if npm:
        files[NPMRC] = "".join(f"{key}={value}\n" for key, value in npm.items()).encode()
        variables["NPM_CONFIG_USERCONFIG"] = f"{FOLDER}/{NPMRC}"
        urls += [value for value in npm.values() if "://" in value]
    proxies = dict(_proxies(env))
    variables.update(proxies)
    urls += [value for name, value in proxies.items() if "no_proxy" not in name.lower()]
    passed = {name: env[name] for name in _PASSED_ON if env.get(name)}
    variables.update(passed)
    urls += [part for value in passed.values() for part in value.split(",") if "://" in part]
    if bundle := _bundle(env, root):
        files[CA] = bundle
        variables.update(dict.fromkeys(_CA_VARIABLES, f"{FOLDER}/{CA}"))
    if sources := _apt(env, root):
        files[APT_SOURCES] = sources[0].encode()
        files[APT_CONF] = _apt_conf(proxies, bool(bundle)).encode()
        urls += sources[1]
    openings, notes = _openings(urls)
    return Surroundings(variables, files, openings, notes)


def _pip(env: Mapping[str, str], root: Path, home: Path) -> dict[str, str]:
    """As pip reads it: the host's, the user's, then variables."""
    found: dict[str, str] = {}
    for path in (root / "etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text())
        except (OSError, configparser.Error, UnicodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update({k: " ".join(v.split()) for k, v in parser.items(section)})
    for key in _PIP:
        if value := env.get("PIP_" + key.upper().replace("-", "_")):
            found[key] = value
    return {key: found[key] for key in _PIP if found.get(key)}


def _npm(env: Mapping[str, str], root: Path, home: Path) -> dict[str, str]:
    """What tells npm where to go and who it is."""
    found: dict[str, str] = {}
    for path in (root / "etc/npmrc", home / ".npmrc"):
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeError):
            continue
        for line in lines:
            key, equals, value = line.partition("=")
            if equals and not line.lstrip().startswith(("#", ";")):
                found[key.strip()] = value.strip()
    for name, value in env.items():
        if name.lower().startswith("npm_config_"):
            found[name.lower().removeprefix("npm_config_").replace("_", "-")] = value
    wanted = ("registry", "proxy", "https-proxy", "noproxy", "strict-ssl")
    return {
        key: os.path.expandvars(value)
        for key, value in found.items()
        if (key in wanted or key.startswith(("//", "@"))) and "\n" not in value
    }


def _proxies(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """In both spellings: programs differ in which they read."""
    for name in _PROXIES:
        if value := env.get(name) or env.get(name.upper()):
            yield name, value
            yield name.upper(), value


def _bundle(env: Mapping[str, str], root: Path) -> bytes | None:
    named = env.get("SSL_CERT_FILE")
    for path in ([Path(named)] if named else []) + [root / SYSTEM_CA.relative_to("/")]:
        try:
            return path.read_bytes()
        except OSError:
            continue
    return None


def _apt(env: Mapping[str, str], root: Path) -> tuple[str, list[str]] | None:
    """Lines for the suite :data:`SUITE` of a guest, and their addresses."""
    try:
        found = debian_sources(SUITE, env, root / "etc/apt")
    except HostSetupError:
        return None
    lines = []
    for source in found:
        options = " [trusted=yes]" if source.trusted else ""
        lines.append(f"deb{options} {source.uri} {source.suite} main\n")
    return "".join(lines), [source.uri for source in found]


def _apt_conf(proxies: Mapping[str, str], has_ca: bool) -> str:
    lines = [
        f'Dir::Etc::sourcelist "{FOLDER}/{APT_SOURCES}";',
        f'Dir::Etc::sourceparts "{FOLDER}/none";',
    ]
    lines += [f'Acquire::https::CaInfo "{FOLDER}/{CA}";'] if has_ca else []
    for kind in ("http", "https"):
        if proxy := proxies.get(f"{kind}_proxy"):
            lines.append(f'Acquire::{kind}::Proxy "{proxy}";')
    return "\n".join(lines) + "\n"


def _openings(urls: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: dict[str, None] = {}
    notes: dict[str, None] = {}
    for host, port in dict.fromkeys(_targets(urls)):
        for address in _addresses(host, port):
            if address.is_loopback:
                notes[
                    f"{host}:{port} is on this host's loopback, which no sandbox reaches: let it "
                    "listen on another address"
                ] = None
            elif is_private(address):
                found[f"{address}/32:{port}"] = None
    return tuple(found), tuple(notes)


def _targets(urls: Iterable[str]) -> Iterator[tuple[str, int]]:
    for url in urls:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            continue
        if parts.hostname and port:
            yield parts.hostname, port


def _addresses(host: str, port: int) -> list[ipaddress.IPv4Address]:
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.IPv4Address(one[4][0]) for one in found]
