from __future__ import annotations

from pathlib import Path

import pytest

from aenv.models.errors import HostSetupError
from aenv.node.images.apt_sources import AptSource, debian_sources

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
# a comment within a stanza
Trusted: yes

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def suites(sources: list[AptSource]) -> list[str]:
    return [source.suite for source in sources]


def test_deb822_sources_are_split_by_suite_and_reduced_to_main(tmp_path: Path) -> None:
    write(tmp_path, "sources.list.d/debian.sources", DEB822)

    sources = debian_sources("bookworm", {}, tmp_path)

    assert suites(sources) == ["bookworm", "bookworm-updates", "bookworm-security"]
    assert {source.components for source in sources} == {("main",)}
    assert sources[0].signed_by == "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert sources[2].trusted


def test_one_line_sources_keep_their_options(tmp_path: Path) -> None:
    write(
        tmp_path,
        "sources.list",
        "deb [arch=amd64 signed-by=/keys/debian.gpg] https://m.example/d bookworm main # ours\n"
        "deb-src https://m.example/d bookworm main\n"
        "# deb https://old.example/d bookworm main\n",
    )

    assert debian_sources("bookworm", {}, tmp_path) == [
        AptSource("https://m.example/d", "bookworm", ("main",), "/keys/debian.gpg")
    ]


def test_an_inline_key_survives_the_round_trip(tmp_path: Path) -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINB\n -----END PGP PUBLIC KEY BLOCK-----"
    stanza = AptSource("http://m.example/debian", "bookworm", ("main",), key).deb822()
    write(tmp_path, "sources.list.d/inline.sources", stanza)

    [source] = debian_sources("bookworm", {}, tmp_path)

    assert source.deb822() == stanza


def test_other_vendors_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "sources.list.d/debian.sources", DEB822)
    write(
        tmp_path,
        "sources.list.d/vendors.list",
        "deb [signed-by=/keys/vendor.gpg] https://vendor.example/apt bookworm main\n"
        "deb https://docker.example/linux/debian bookworm stable\n"
        "deb https://node.example/node_20.x nodistro main\n",
    )

    uris = {source.uri for source in debian_sources("bookworm", {}, tmp_path)}

    assert uris == {"http://mirror.example/debian", "http://mirror.example/debian-security/"}


def test_a_host_on_another_release_lends_its_mirrors(tmp_path: Path) -> None:
    write(tmp_path, "sources.list.d/debian.sources", DEB822.replace("bookworm", "trixie"))

    sources = debian_sources("bookworm", {}, tmp_path)

    assert suites(sources) == ["bookworm", "bookworm-updates", "bookworm-security"]


def test_without_a_debian_mirror_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, "sources.list", "deb http://archive.example/ubuntu noble main universe\n")

    with pytest.raises(HostSetupError, match="AENV_DEBIAN_SOURCES"):
        debian_sources("bookworm", {}, tmp_path)


def test_an_operator_may_name_the_sources(tmp_path: Path) -> None:
    write(tmp_path, "mine.list", "deb http://mine.example/d bookworm main\n")

    named = {"AENV_DEBIAN_SOURCES": str(tmp_path / "mine.list")}

    assert [source.uri for source in debian_sources("bookworm", named, tmp_path)] == [
        "http://mine.example/d"
    ]
