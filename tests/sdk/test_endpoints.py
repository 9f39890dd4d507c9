"""Which server is meant."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from aenv.models.errors import InvalidRequestError, ServerUnreachableError
from aenv.models.folders import Folders
from aenv.sdk.endpoints import Endpoint, resolve
from aenv.sdk.holders import LOCK_NAME


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders.resolve({"HOME": str(tmp_path), "AENV_CONFIG_DIR": str(tmp_path)})


def store(folders: Folders, **profiles: Any) -> None:
    folders.credentials.write_text(json.dumps({"profiles": profiles}))


MINE = {"url": "https://mine.example", "api_key": "key-mine"}
OTHER = {"url": "http://other.example:9", "api_key": "key-other"}
LOCAL = {"url": "http://127.0.0.1:8000", "api_key": "key-local", "instance": "ab", "data": "/d"}


def test_nobody_named_one(folders: Folders) -> None:
    assert resolve(env={}, folders=folders) is None
    store(folders, default=LOCAL, ab=LOCAL)
    assert resolve(env={}, folders=folders) is None


def test_an_argument_beats_everything_and_finds_its_stored_key(folders: Folders) -> None:
    store(folders, default=MINE, other=OTHER)
    env = {"AENV_SYSTEM_URL": "http://env", "AENV_PROFILE": "default"}
    assert resolve("http://a", "k", env=env, folders=folders) == Endpoint("http://a", "k")
    found = resolve("http://other.example:9/", env={}, folders=folders)
    assert found == Endpoint("http://other.example:9", "key-other")


def test_a_profile_beats_the_environment(folders: Folders) -> None:
    store(folders, default=MINE, other=OTHER)
    env = {"AENV_SYSTEM_URL": "http://env"}
    assert resolve(profile="other", env=env, folders=folders) == Endpoint(
        "http://other.example:9", "key-other"
    )
    found = resolve(env={**env, "AENV_PROFILE": "other"}, folders=folders)
    assert found is not None
    assert found.api_key == "key-other"


def test_the_key_of_a_server_here_goes_only_to_the_server_that_holds_its_folder(
    folders: Folders, tmp_path: Path
) -> None:
    """Once it has ended, its port is anybody's."""
    data = tmp_path / "data"
    data.mkdir()
    store(folders, ab={**LOCAL, "data": str(data)})
    with pytest.raises(ServerUnreachableError, match=f"aenv up --data {data}"):
        resolve(profile="ab", env={}, folders=folders)
    assert resolve(LOCAL["url"], env={}, folders=folders) == Endpoint(LOCAL["url"], None)

    with (data / LOCK_NAME).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for url in (LOCAL["url"], "http://127.0.0.1:8765"):
            held.truncate(0)
            held.seek(0)
            json.dump({"pid": 1, "url": url}, held)
            held.flush()
            found = resolve(profile="ab", env={}, folders=folders)
            assert found == Endpoint(url, "key-local")
        stale = resolve(LOCAL["url"], env={}, folders=folders)
        assert stale == Endpoint(LOCAL["url"], None)


def test_the_environment_beats_the_default_profile(folders: Folders) -> None:
    store(folders, default=MINE)
    env = {"AENV_SYSTEM_URL": "http://env/", "AENV_API_KEY": "k"}
    assert resolve(env=env, folders=folders) == Endpoint("http://env", "k")
    assert resolve(env={}, folders=folders) == Endpoint("https://mine.example", "key-mine")


def test_an_unknown_profile_and_a_strange_url_are_refused(folders: Folders) -> None:
    with pytest.raises(InvalidRequestError, match="auth set"):
        resolve(profile="nope", env={}, folders=folders)
    for url in ("localhost:8000", "ftp://x", "http://"):
        with pytest.raises(InvalidRequestError, match="URL"):
            resolve(url, env={}, folders=folders)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"profiles": 3}', '{"profiles": {"a": {}}}'])
def test_a_damaged_file_is_reported_with_its_name(folders: Folders, text: str) -> None:
    folders.credentials.write_text(text)
    with pytest.raises(InvalidRequestError, match=r"credentials\.json"):
        resolve(env={}, folders=folders)


def test_a_key_is_in_no_representation() -> None:
    assert "secret" not in repr(Endpoint("http://a", "secret"))
