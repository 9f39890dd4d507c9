from __future__ import annotations

import pytest

from aenv.dockerfile.faults import DockerfileError
from aenv.dockerfile.reading import read
from aenv.dockerfile.words import pairs, split


def texts(source: str) -> list[tuple[str, str, int]]:
    return [(one.name, one.text, one.line) for one in read(source).instructions]


def test_lines_go_on_and_comments_between_them_are_nothing() -> None:
    source = (
        "# a comment\nfrom base\n\nRUN one && \\\n  # in between\n\n  two \\  \n  three\nCMD x\n"
    )
    assert texts(source) == [
        ("FROM", "base", 2),
        ("RUN", "one &&   two   three", 4),
        ("CMD", "x", 9),
    ]


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    assert texts("\ufeffFROM base\r\nRUN a \\\r\n b\r\n") == [
        ("FROM", "base", 1),
        ("RUN", "a  b", 2),
    ]


def test_another_escape_letter() -> None:
    source = "# syntax=docker/dockerfile:1\n# escape=`\nFROM base\nRUN a `\n b\\\n"
    found = read(source)
    assert found.escape == "`"
    assert [one.text for one in found.instructions] == ["base", "a  b\\"]


def test_a_directive_below_a_comment_is_a_comment() -> None:
    assert read("# hello\n# escape=`\nFROM base").escape == "\\"


def test_the_exec_form_and_what_looks_like_it() -> None:
    found = read('FROM b\nRUN ["a", "b c"]\nRUN [ -f x ] || true\nCMD ["a", 1]').instructions
    assert [one.words for one in found[1:]] == [("a", "b c"), None, None]


def test_flags_stand_before_the_rest() -> None:
    (_, one) = read("FROM b\nCOPY --from=x --chown=a:b --link c --d").instructions
    assert one.flags == (("from", "x"), ("chown", "a:b"), ("link", "true"))
    assert one.text == "c --d"


def test_here_documents() -> None:
    source = (
        "FROM b\nRUN <<EOF\nline $A\n  # no comment\n\nEOF\n"
        "COPY <<-'a' <<\"b\" /x/\n\tone\n\ta\ntwo\nb\nRUN cat <<A >x && echo 1<<2\nin A\nA\n2\n"
    )
    run, copy, last = read(source).instructions[1:]
    assert run.heredocs[0].content == "line $A\n  # no comment\n\n"
    assert run.heredocs[0].expand
    assert [(d.name, d.content, d.expand) for d in copy.heredocs] == [
        ("a", "one\n", False),
        ("b", "two\n", False),
    ]
    assert last.heredocs[0].content == "in A\n"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("FROM b\n\nNOPE x", 3),
        ("FROM b\nENV", 2),
        ("FROM b\nRUN <<EOF\nno end", 2),
        ("# escape=x\nFROM b", 1),
        ("# escape=`\n# escape=`\nFROM b", 2),
    ],
)
def test_mistakes_name_their_line(source: str, line: int) -> None:
    with pytest.raises(DockerfileError) as fault:
        read(source, "docker/Dockerfile")
    assert str(fault.value).startswith(f"docker/Dockerfile:{line}: ")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        (r"a\ b 'c d' \"e", ["a b", "c d", '"e']),
        ('"a \\"b\\" c"', ['a "b" c']),
        ("'$A' \"$A\" \\$A $A", [r"\$A", "$A", r"\$A", "$A"]),
        ("${A:-x y} z", ["${A:-x y}", "z"]),
        ("a''", ["a"]),
        ("''", [""]),
    ],
)
def test_words(text: str, wanted: list[str]) -> None:
    assert split(text, "\\", file="D", line=1) == wanted


def test_names_and_values() -> None:
    assert pairs("A=1 B=\"x y\" C='$D'", "\\", file="D", line=1) == [
        ("A", "1"),
        ("B", "x y"),
        ("C", r"\$D"),
    ]
    assert pairs("OLD all of  it", "\\", file="D", line=1) == [("OLD", "all of  it")]
    for wrong in ("A=1 B", "=1", "A='x"):
        with pytest.raises(DockerfileError):
            pairs(wrong, "\\", file="D", line=1)
