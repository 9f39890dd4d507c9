"""Certificates of our own: kept while they serve, renewed when they do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aenv.models.errors import HostSetupError
from aenv.models.folders import Folders
from aenv.models.settings import Settings, TlsSettings
from aenv.server import tls

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def settings(root: Path, domain: str | None = None, **options: str) -> Settings:
    folders = Folders(root, root, root, root)
    return Settings(folders, domain=domain, tls=TlsSettings(port=1, **options))


def test_a_certificate_is_kept_until_shortly_before_its_end(tmp_path: Path) -> None:
    file = tmp_path / "tls" / "server.pem"
    tls.context(settings(tmp_path), now=NOW)
    first = file.read_bytes()

    tls.context(settings(tmp_path), now=NOW + timedelta(days=360))
    assert file.read_bytes() == first

    ca = (tmp_path / "tls" / "ca.pem").read_bytes()
    tls.context(settings(tmp_path), now=NOW + timedelta(days=380))
    assert file.read_bytes() != first
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == ca


def test_another_domain_gets_another_certificate(tmp_path: Path) -> None:
    tls.context(settings(tmp_path), now=NOW)
    first = (tmp_path / "tls" / "server.pem").read_bytes()

    tls.context(settings(tmp_path, "sbx.test:3443"), now=NOW)

    assert (tmp_path / "tls" / "server.pem").read_bytes() != first


@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "server.pem", "server.key"])
def test_what_is_lost_or_damaged_is_made_anew(tmp_path: Path, name: str) -> None:
    tls.context(settings(tmp_path), now=NOW)
    for content in (b"", None):
        file = tmp_path / "tls" / name
        file.write_bytes(content) if content is not None else file.unlink()
        tls.context(settings(tmp_path), now=NOW)


def test_files_of_the_operator_that_do_not_work_are_named(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    given = {"cert": str(tmp_path / "c.pem"), "key": str(tmp_path / "k.pem")}
    with pytest.raises(HostSetupError, match=r"c\.pem and .*k\.pem cannot be used"):
        tls.context(settings(tmp_path, **given))
