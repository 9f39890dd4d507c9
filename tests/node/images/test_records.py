from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.node.images.recipes import TinyRecipe

from aenv.node.images.records import CorruptImageError, Record, Shelf


def stock(shelf: Shelf, recipe: TinyRecipe) -> Record:
    with shelf.workspace(recipe.name) as workspace:
        built = recipe.build(workspace, lambda *_: None)
        return shelf.seal(recipe, recipe.digest(), workspace, built)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "images")


def test_a_sealed_image_is_found_with_all_that_is_known_of_it(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())

    found = shelf.find(TinyRecipe())

    assert found == record
    assert found.packages == {"tiny": "1"}
    assert found.size_bytes == shelf.layer(found).stat().st_size
    assert found.info().reproducible
    shelf.check_fully(found)


def test_another_recipe_finds_nothing(shelf: Shelf) -> None:
    stock(shelf, TinyRecipe())

    assert shelf.find(TinyRecipe(revision="2")) is None


def test_nothing_is_left_but_the_image(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())

    assert [path.name for path in shelf.root.iterdir()] == [record.recipe[:32]]


def test_an_interrupted_build_leaves_nothing(shelf: Shelf) -> None:
    def interrupted() -> None:
        with shelf.workspace("tiny") as workspace:
            (workspace / "half").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(shelf.root.iterdir()) == []


def test_what_a_killed_build_left_is_cleared_by_the_next(shelf: Shelf) -> None:
    (shelf.root / ".tiny-killed/root/etc").mkdir(parents=True)
    (shelf.root / ".other-alive").mkdir()

    shelf.clear_workspaces("tiny")

    assert [path.name for path in shelf.root.iterdir()] == [".other-alive"]


def test_sealing_again_replaces(shelf: Shelf) -> None:
    first, second = stock(shelf, TinyRecipe()), stock(shelf, TinyRecipe())

    assert first.digest == second.digest
    assert shelf.find(TinyRecipe()) == second


def test_pruning_keeps_the_newest_of_a_template(shelf: Shelf) -> None:
    for revision in "123":
        stock(shelf, TinyRecipe(revision))

    shelf.prune("other", keep=0)
    shelf.prune("tiny", keep=2)

    assert [shelf.find(TinyRecipe(revision)) is not None for revision in "123"] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1, "binds": 3}'])
def test_a_damaged_record_is_as_none(shelf: Shelf, content: str) -> None:
    record = stock(shelf, TinyRecipe())
    (shelf.folder(record.recipe) / "record.json").write_text(content)

    assert shelf.find(TinyRecipe()) is None


def test_a_record_of_another_template_is_not_taken(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())
    path = shelf.folder(record.recipe) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": "other"}))

    assert shelf.find(TinyRecipe()) is None


def test_a_truncated_image_fails_the_cheap_check(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())
    layer = shelf.layer(record)
    layer.chmod(0o644)
    layer.write_bytes(layer.read_bytes()[:-1])

    with pytest.raises(CorruptImageError, match="bytes instead of"):
        shelf.check(record)


def test_an_overwritten_start_fails_the_cheap_check(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())
    layer = shelf.layer(record)
    layer.chmod(0o644)
    layer.write_bytes(b"\0" * record.size_bytes)

    with pytest.raises(CorruptImageError, match="superblock"):
        shelf.check(record)


def test_a_missing_image_fails_the_cheap_check(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())
    shelf.layer(record).unlink()

    with pytest.raises(CorruptImageError):
        shelf.check(record)


def test_one_flipped_byte_fails_the_full_check_only(shelf: Shelf) -> None:
    record = stock(shelf, TinyRecipe())
    layer = shelf.layer(record)
    layer.chmod(0o644)
    layer.write_bytes(layer.read_bytes()[:-1] + b"X")

    shelf.check(record)
    with pytest.raises(CorruptImageError, match="sha256"):
        shelf.check_fully(record)
