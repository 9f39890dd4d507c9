"""Files of a machine, and what a hostile image may not make of them."""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aenv.models.sandboxes import Resources
from aenv.node.engines.gvisor.bundle import Bundle, Facts
from aenv.node.engines.gvisor.guestfolder import guest_folder, keep_tmp_on_disk


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    bundle = Bundle("i" * 20, tmp_path / "machines" / ("i" * 20), tmp_path / "runsc")
    bundle.make()
    return bundle


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    agent = tmp_path / "agent"
    agent.write_bytes(b"binary")
    return agent


def test_facts_come_back(bundle: Bundle) -> None:
    facts = Facts(Resources(1.5, 256, 512), ("1.1.1.1",), "20260701")
    bundle.write_facts(facts)

    assert bundle.read_facts() == facts


@pytest.mark.parametrize("content", ["", "{", "[]", '{"resources": 3}'])
def test_torn_files_count_as_absent(bundle: Bundle, content: str) -> None:
    bundle.facts.write_text(content)
    bundle.state.write_text(content)

    assert bundle.read_facts() == Facts()
    assert bundle.read_state().get("sandbox") is None


def test_a_machine_is_made_once(bundle: Bundle) -> None:
    with pytest.raises(FileExistsError):
        bundle.make()


def test_removing_takes_what_runsc_left(bundle: Bundle, tmp_path: Path) -> None:
    for name in (f"runsc-{'i' * 20}.sock", bundle.state.name, bundle.state.stem + ".lock"):
        (bundle.runsc_root / name).write_text("")

    bundle.remove()
    bundle.remove()

    assert list((tmp_path / "runsc").iterdir()) == []
    assert list((tmp_path / "machines").iterdir()) == []


def test_every_machine_has_a_boot_id_of_its_own(bundle: Bundle, tmp_path: Path) -> None:
    other = Bundle("j" * 20, tmp_path / "machines" / ("j" * 20), tmp_path / "runsc")
    other.make()

    assert len(bundle.boot_id.read_text()) == 37
    assert bundle.boot_id.read_text() != other.boot_id.read_text()


def test_machines_share_the_agents_folder_until_the_agent_changes(
    agent: Path, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(lambda _: guest_folder(tmp_path / "s", agent, host_ca=False), range(8))
        )
    agent.write_bytes(b"a newer binary")
    newer = guest_folder(tmp_path / "s", agent, host_ca=False)

    assert len(set(made)) == 1
    assert newer != made[0]
    assert (made[0] / "agent").read_bytes() == b"binary"
    assert (newer / "agent").stat().st_mode & 0o777 == 0o755
    assert sorted((tmp_path / "s").iterdir()) == sorted({made[0], newer})


def test_the_folder_holds_aenv_for_the_guests_python(agent: Path, tmp_path: Path) -> None:
    folder = guest_folder(tmp_path / "s", agent, host_ca=False)
    script = (
        f"import sys; sys.path.append({str(folder / 'python')!r}); import aenv; print(aenv.__all__)"
    )

    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )

    assert said.stdout == "['Restore', 'on_restore']\n"
    assert all(path.stat().st_mode & 0o005 == 0o005 for path in folder.rglob("*") if path.is_dir())


def test_tmp_gets_an_entry_and_is_open_to_all(tmp_path: Path) -> None:
    keep_tmp_on_disk(tmp_path)
    keep_tmp_on_disk(tmp_path)

    assert stat.S_IMODE((tmp_path / "tmp").stat().st_mode) == 0o1777
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [".X11-unix"]


def test_links_in_an_image_are_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / "tmp").symlink_to(outside)

    keep_tmp_on_disk(root)

    assert list(outside.iterdir()) == []
