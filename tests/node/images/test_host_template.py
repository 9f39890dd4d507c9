from __future__ import annotations

import os
from pathlib import Path

import pytest

from aenv.models.errors import HostSetupError
from aenv.node.engine import Bind
from aenv.node.images.host import HostRecipe

PRIVATE = {
    "etc/shadow": "root:secret",
    "etc/ssh/ssh_host_key": "secret",
    "etc/pip.conf": "index-url = https://user:secret@mirror",
    "etc/gitconfig": "secret",
    "etc/apt/auth.conf": "secret",
    "etc/profile": "export TOKEN=secret",
    "etc/profile.d/company.sh": "export TOKEN=secret",
    "etc/environment": "TOKEN=secret",
    "etc/sudoers": "secret",
    "etc/hosts": "10.0.0.1 secret",
    "etc/ssl/private/key.pem": "secret",
    "root/.ssh/id_ed25519": "secret",
    "home/alice/.netrc": "secret",
    "var/lib/app/db": "secret",
    "opt/app/token": "secret",
}

PUBLIC = {
    "etc/passwd": "alice:x:1001:1001::/home/alice:/bin/zsh",
    "etc/ld.so.cache": "cache",
    "etc/os-release": "NAME=Debian",
    "etc/services": "http 80/tcp",
    "etc/ssl/certs/ca-certificates.crt": "certificates",
    "usr/bin/true": "",
    "usr/local/bin/tool": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small usr-merged host."""
    root = tmp_path / "host"
    for name, content in {**PRIVATE, **PUBLIC}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "usr/lib").mkdir()
    (root / "bin").symlink_to("usr/bin")
    (root / "lib").symlink_to("usr/lib")
    (root / "etc/alternatives").mkdir()
    (root / "etc/alternatives/editor").symlink_to("/usr/bin/nano")
    return root


def build(root: Path, tmp_path: Path) -> tuple[Path, tuple[Bind, ...]]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    built = HostRecipe(root).build(workspace, lambda *_: None)
    return built.layer, built.binds


def test_nothing_private_of_the_host_is_in_the_skeleton(root: Path, tmp_path: Path) -> None:
    layer, _ = build(root, tmp_path)

    texts = [path.read_text() for path in layer.rglob("*") if path.is_file()]
    assert not [text for text in texts if "secret" in text or "alice" in text]
    assert not (layer / "etc/shadow").exists()


def test_what_usr_needs_of_etc_is_there(root: Path, tmp_path: Path) -> None:
    layer, _ = build(root, tmp_path)

    assert (layer / "etc/ld.so.cache").read_text() == "cache"
    assert (layer / "etc/ssl/certs/ca-certificates.crt").read_text() == "certificates"
    assert os.readlink(layer / "etc/alternatives/editor") == "/usr/bin/nano"
    assert os.readlink(layer / "etc/localtime") == "/usr/share/zoneinfo/Etc/UTC"


def test_the_user_has_a_home_and_everyone_a_tmp(root: Path, tmp_path: Path) -> None:
    layer, _ = build(root, tmp_path)

    assert "user:x:1000:1000::/home/user:/bin/bash" in (layer / "etc/passwd").read_text()
    assert (layer / "home/user/.profile").is_file()
    assert (layer / "tmp").stat().st_mode & 0o7777 == 0o1777
    if os.geteuid() == 0:
        assert (layer / "home/user/.profile").stat().st_uid == 1000
        assert (layer / "root/.profile").stat().st_uid == 0


def test_usr_is_bound_read_only_and_links_follow_the_hosts_layout(
    root: Path, tmp_path: Path
) -> None:
    layer, binds = build(root, tmp_path)

    assert Bind(root / "usr", "/usr", read_only=True) in binds
    assert all(bind.read_only for bind in binds)
    assert os.readlink(layer / "bin") == "usr/bin"
    assert os.readlink(layer / "lib") == "usr/lib"


def test_a_host_that_is_not_usr_merged_lends_its_folders(root: Path, tmp_path: Path) -> None:
    (root / "lib").unlink()
    (root / "lib").mkdir()

    layer, binds = build(root, tmp_path)

    assert Bind(root / "lib", "/lib", read_only=True) in binds
    assert (layer / "lib").is_dir()


def test_what_others_cannot_read_in_usr_local_is_covered(root: Path, tmp_path: Path) -> None:
    (root / "usr/local/etc").mkdir()
    (root / "usr/local/etc/app.conf").write_text("secret")
    (root / "usr/local/share/keys").mkdir(parents=True)
    (root / "usr/local/share/keys").chmod(0o700)

    _, binds = build(root, tmp_path)

    covers = {bind.target: bind.source for bind in binds if not bind.source.is_absolute()}
    assert covers.keys() == {"/usr/local/etc", "/usr/local/share/keys"}
    assert [*(tmp_path / "workspace" / covers["/usr/local/etc"]).iterdir()] == []


def test_the_digest_follows_what_is_copied_and_nothing_else(root: Path) -> None:
    before = HostRecipe(root).digest()
    assert HostRecipe(root).digest() == before

    (root / "etc/shadow").write_text("changed")
    assert HostRecipe(root).digest() == before

    (root / "etc/ld.so.cache").write_text("changed")
    assert HostRecipe(root).digest() != before


def test_it_is_marked_as_not_reproducible_and_kept_out_of_the_shared_cache() -> None:
    assert not HostRecipe.reproducible
    assert not HostRecipe.host_wide


def test_a_host_without_usr_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostSetupError, match="/usr/bin"):
        HostRecipe(tmp_path).build(tmp_path, lambda *_: None)
