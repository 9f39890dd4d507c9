"""Names of images, as Docker reads them."""

from __future__ import annotations

import pytest

from aenv.models.errors import InvalidRequestError
from aenv.models.references import ImageReference, is_explicit

SHA = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "registry", "repository", "which", "name"),
    [
        ("python", "docker.io", "library/python", "latest", "python:latest"),
        ("python:3.12", "docker.io", "library/python", "3.12", "python:3.12"),
        ("docker.io/python:3.12", "docker.io", "library/python", "3.12", "python:3.12"),
        ("index.docker.io/library/python:3", "docker.io", "library/python", "3", "python:3"),
        ("team/tool", "docker.io", "team/tool", "latest", "team/tool:latest"),
        ("ghcr.io/a/b/c:v1", "ghcr.io", "a/b/c", "v1", "ghcr.io/a/b/c:v1"),
        ("localhost/a", "localhost", "a", "latest", "localhost/a:latest"),
        ("localhost:5000/a:b", "localhost:5000", "a", "b", "localhost:5000/a:b"),
        ("[::1]:5000/a:b", "[::1]:5000", "a", "b", "[::1]:5000/a:b"),
        (f"python@{SHA}", "docker.io", "library/python", SHA, f"python@{SHA}"),
        (f"python:3@{SHA}", "docker.io", "library/python", SHA, f"python@{SHA}"),
        ("GHCR.io/a", "ghcr.io", "a", "latest", "ghcr.io/a:latest"),
    ],
)
def test_a_name_means_one_image(
    text: str, registry: str, repository: str, which: str, name: str
) -> None:
    found = ImageReference.parse(text)

    assert (found.registry, found.repository, found.digest or found.tag) == (
        registry,
        repository,
        which,
    )
    assert found.name == name
    assert ImageReference.parse(found.name).name == name


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "UPPER", "a b", "a:", "a:b:c", "-a", "a/", "/a", "a//b", "../x:1", "a/../b:1"),
        *("a@b", f"a@{SHA[:-1]}", f"a@{SHA}0", "a:" + "t" * 129, "x" * 256, "a\n:1", "ex.com:x/a"),
    ],
)
def test_what_names_no_image_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="names no image"):
        ImageReference.parse(text)


@pytest.mark.parametrize(
    ("text", "explicit"), [("python", False), ("python:3", True), ("a/b", True), (f"a@{SHA}", True)]
)
def test_a_plain_word_is_not_taken_for_an_image(text: str, explicit: bool) -> None:
    assert is_explicit(text) is explicit
