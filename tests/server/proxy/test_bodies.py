"""Chunked bodies survive any cutting, ours and theirs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.server.proxy.bodies import ChunkDecoder, encode_chunk, encode_end
from aenv.server.proxy.heads import MalformedHeadError, parse_request, parse_response

chunks = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
cuts = st.lists(st.integers(min_value=0, max_value=3000), max_size=12)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


@given(
    chunks,
    cuts,
    st.sampled_from([b"", b"X-Sum: 1\r\n"]),
    st.sampled_from([b"", b";a=b", b';q="x y"']),
)
def test_what_was_chunked_comes_out_whole(
    chunks: list[bytes], cuts: list[int], trailers: bytes, extension: bytes
) -> None:
    raw = b"".join(b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    raw += b"000\r\n" + trailers + b"\r\n"
    decoder, ours = ChunkDecoder(), b""
    body = b""
    for piece in pieces_of(raw, cuts):
        payload: list[bytes] = []
        assert decoder.feed(piece, payload) == len(piece)
        body += b"".join(payload)
        ours += b"".join(encode_chunk(payload))
    assert decoder.done
    assert body == b"".join(chunks)
    assert decoder.trailers == trailers

    again, payload = ChunkDecoder(), []
    again.feed(ours + encode_end(trailers), payload)
    assert again.done
    assert b"".join(payload) == body


@given(chunks, st.binary(max_size=50))
def test_the_bytes_behind_a_body_are_left_alone(chunks: list[bytes], rest: bytes) -> None:
    raw = b"".join(b"".join(encode_chunk([chunk])) for chunk in chunks) + encode_end(b"")
    payload: list[bytes] = []
    assert ChunkDecoder().feed(raw + rest, payload) == len(raw)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for_but_never_breaks(data: bytes) -> None:
    for parse in (
        lambda: ChunkDecoder().feed(data, []),
        lambda: parse_request(data + b"\r\n\r\n", max_headers=10),
        lambda: parse_response(data + b"\r\n\r\n"),
    ):
        try:
            parse()
        except MalformedHeadError:
            continue


def test_an_endless_size_line_is_refused() -> None:
    decoder = ChunkDecoder()
    decoder.feed(b"0" * 1000, [])
    with pytest.raises(MalformedHeadError):
        decoder.feed(b"0" * 100, [])


def test_endless_trailers_are_refused() -> None:
    decoder = ChunkDecoder()
    decoder.feed(b"0\r\n" + b"X-A: b\r\n" * 2000, [])
    with pytest.raises(MalformedHeadError):
        decoder.feed(b"X-A: b\r\n" * 100, [])
