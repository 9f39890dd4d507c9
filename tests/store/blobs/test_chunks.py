"""Where content is cut: by what it is, not by how it came or where it lies."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.blobs.contents import PAGE, pages

from aenv.store.blobs.chunks import HOLE, LEAST, LONGEST, Chunker, Piece


def cut(*parts: bytes | int) -> list[Piece]:
    chunker = Chunker()
    found: list[Piece] = []
    for part in parts:
        fed = chunker.feed(part) if isinstance(part, bytes) else chunker.feed_zeros(part)
        found += fed
    return found + list(chunker.finish())


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(bytes(one.length) if one.data is None else one.data for one in pieces)


Content = st.lists(
    st.one_of(
        st.integers(1, 200).map(lambda n: bytes(n * PAGE)),
        st.integers(1, 300).map(lambda n: pages(n, n)),
        st.binary(max_size=3 * PAGE),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(Content, st.randoms(use_true_random=False))
def test_nothing_is_lost_and_the_way_it_is_fed_does_not_matter(
    blocks: list[bytes], chance: random.Random
) -> None:
    content = b"".join(blocks)
    pieces = cut(content)

    assert joined(pieces) == content
    assert [one.offset for one in pieces] == [
        sum(p.length for p in pieces[:index]) for index in range(len(pieces))
    ]
    assert all(one.length <= LONGEST for one in pieces if one.data is not None)

    sliced: list[bytes | int] = []
    start = 0
    while start < len(content):
        end = min(len(content), start + chance.randint(1, 100 * PAGE))
        part = content[start:end]
        sliced.append(part if part.strip(b"\0") else len(part))
        start = end
    assert cut(*sliced) == pieces


def test_long_runs_of_zeros_are_holes_and_short_ones_are_not() -> None:
    long = cut(pages(64, 1) + bytes(HOLE) + pages(64, 2))
    short = cut(pages(80, 1) + bytes(HOLE - PAGE) + pages(64, 2))
    assert [one.length for one in long if one.data is None] == [HOLE]
    assert [one for one in short if one.data is None] == []


def test_an_empty_blob_has_no_pieces_and_a_zero_one_a_hole() -> None:
    assert cut(b"") == []
    assert cut(bytes(10 * HOLE + 5)) == [Piece(0, 10 * HOLE + 5, None)]


def test_pages_put_in_or_left_out_change_few_chunks() -> None:
    """What an insertion into a memory image's middle would cost with chunks of a fixed length:
    all that follows it.
    """
    content = pages(8000, 3)
    before = {one.data for one in cut(content)}
    middle = 4000 * PAGE
    for changed in (
        content[:middle] + pages(3, 4) + content[middle:],
        content[:middle] + content[middle + 5 * PAGE :],
        content[:middle] + pages(1, 5) + content[middle + PAGE :],
    ):
        fresh = [one for one in cut(changed) if one.data not in before]
        assert len(fresh) <= 3
    assert len(before) > 15


def test_chunks_are_no_shorter_than_need_be() -> None:
    pieces = cut(pages(8000, 6))
    assert all(one.length >= LEAST for one in pieces[:-1])
