"""How volumes and the files in them are named on the command line."""

from __future__ import annotations

import pytest
import typer

from aenv.cli.volumes import _remote, mounts


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("data:/a/b", ("data", "/a/b")),
        ("data:/", ("data", "/")),
        ("./data:/a", None),
        ("data", None),
        ("data:a", None),
    ],
)
def test_a_place_in_a_volume(given: str, found: tuple[str, str] | None) -> None:
    assert _remote(given) == found


def test_mounts_by_path_with_a_digest_in_the_name() -> None:
    assert mounts(["a:/x", "b@sha256:00:/y/z"]) == {"/x": "a", "/y/z": "b@sha256:00"}
    assert mounts(None) == {}


@pytest.mark.parametrize("given", ["data", ":/x", "data:x"])
def test_what_is_no_mount(given: str) -> None:
    with pytest.raises(typer.BadParameter):
        mounts([given])
