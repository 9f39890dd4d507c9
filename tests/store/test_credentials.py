"""The credentials file and the data folder's lock."""

from __future__ import annotations

import fcntl
import json
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aenv.models.errors import ConflictError, InvalidRequestError
from aenv.models.folders import Folders
from aenv.store.credentials import local_key, store_local
from aenv.store.locks import NAME, DataLock, is_locked, owner


def house(root: Path, name: str = "data") -> Folders:
    return Folders(root / name, root / "cache", root / "config", root / "run")


def profiles(folders: Folders) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(folders.credentials.read_text())["profiles"]
    return found


def test_the_first_server_becomes_the_default(tmp_path: Path) -> None:
    folders = house(tmp_path)

    store_local(folders, url="http://127.0.0.1:8000", api_key="k")

    assert stat.S_IMODE(folders.credentials.stat().st_mode) == 0o600
    assert profiles(folders)["default"]["url"] == "http://127.0.0.1:8000"
    assert local_key(folders) == "k"


def test_a_second_server_beside_a_running_one_does_not_take_its_place(tmp_path: Path) -> None:
    first, second = house(tmp_path, "one"), house(tmp_path, "two")
    lock = DataLock.acquire(first.data)
    store_local(first, url="http://a", api_key="k1")

    store_local(second, url="http://b", api_key="k2")
    assert profiles(first)["default"]["url"] == "http://a"
    assert (local_key(first), local_key(second)) == ("k1", "k2")

    lock.release()
    store_local(second, url="http://b", api_key="k2")
    assert profiles(first)["default"]["url"] == "http://b"


def test_a_default_of_the_users_own_is_kept(tmp_path: Path) -> None:
    folders = house(tmp_path)
    folders.config.mkdir(parents=True)
    mine = {"url": "https://far.example", "api_key": "mine"}
    folders.credentials.write_text(json.dumps({"profiles": {"default": mine}}))

    store_local(folders, url="http://127.0.0.1:1", api_key="k")

    assert profiles(folders)["default"] == mine
    assert local_key(folders) == "k"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"profiles": 1}', '{"profiles": {"a": 1}}'])
def test_a_damaged_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    folders = house(tmp_path)
    folders.config.mkdir(parents=True)
    folders.credentials.write_text(content)

    with pytest.raises(InvalidRequestError, match="credentials"):
        store_local(folders, url="http://a", api_key="k")
    assert folders.credentials.read_text() == content


def test_a_folder_has_one_server_and_the_error_names_it(tmp_path: Path) -> None:
    lock = DataLock.acquire(tmp_path)
    lock.describe("http://127.0.0.1:8000")

    with pytest.raises(ConflictError, match=r"process \d+ at http://127.0.0.1:8000") as caught:
        DataLock.acquire(tmp_path)
    assert "--data" in str(caught.value)
    assert is_locked(tmp_path)

    lock.release()
    assert not is_locked(tmp_path)
    DataLock.acquire(tmp_path).release()


def test_somebody_who_only_looks_does_not_fail_a_start(tmp_path: Path) -> None:
    DataLock.acquire(tmp_path).release()
    with (tmp_path / NAME).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        DataLock.acquire(tmp_path).release()


def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from aenv.store.locks import DataLock;"
        "lock = DataLock.acquire(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path("src").absolute())},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    assert is_locked(tmp_path)
    held = owner(tmp_path)
    assert held is not None
    assert held["pid"] == process.pid

    process.kill()
    process.wait()

    assert not is_locked(tmp_path)
