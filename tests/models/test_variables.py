from __future__ import annotations

import pytest

from aenv.models.errors import InvalidRequestError
from aenv.models.variables import expand

KNOWN = {"A": "a", "EMPTY": "", "LONG_1": "long"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("$A-$LONG_1", "a-long"),
        ("${A}b$NOPE.", "ab."),
        ("$", "$"),
        ("5$ and $1", "5$ and $1"),
        (r"\$A", "$A"),
        (r"\n", r"\n"),
        ("${NOPE:-x}${EMPTY:-y}${A:-z}", "xya"),
        ("${NOPE-x}${EMPTY-y}", "x"),
        ("${A:+x}${EMPTY:+y}${EMPTY+z}", "xz"),
        ("${NOPE:-${A}b}", "ab"),
        ("${NOPE:-$A}", "a"),
    ],
)
def test_variables_are_replaced(text: str, wanted: str) -> None:
    assert expand(text, KNOWN) == wanted


def test_another_escape_letter() -> None:
    assert expand(r"`$A \$A", KNOWN, escape="`") == r"$A \a"


@pytest.mark.parametrize("text", ["${A", "${", "${}", "${A:x}", "${NOPE:?tell me}", "${:-x}"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        expand(text, KNOWN)


def test_nesting_is_bounded() -> None:
    with pytest.raises(InvalidRequestError):
        expand("${X:-" * 1000 + "}" * 1000, KNOWN)
