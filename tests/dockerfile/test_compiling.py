from __future__ import annotations

import pytest

from aenv.dockerfile.compiling import compiled
from aenv.dockerfile.faults import DockerfileError
from aenv.dockerfile.reading import read
from aenv.dockerfile.stages import BuildStep, Files, Recipe


def recipe(source: str, target: str | None = None, **arguments: str) -> Recipe:
    return compiled(read(source), arguments, target)


def steps(source: str, **arguments: str) -> list[BuildStep]:
    return recipe("FROM base\n" + source, **arguments).last.steps


def one(source: str, **arguments: str) -> BuildStep:
    (found,) = steps(source, **arguments)
    return found


def test_run_in_its_forms() -> None:
    assert one("RUN a && b").argv == ("/bin/sh", "-c", "a && b")
    assert one('RUN ["a", "b c"]').argv == ("a", "b c")
    (found,) = steps('SHELL ["/bin/bash", "-ec"]\nRUN x')
    assert (found.argv, found.line) == (("/bin/bash", "-ec", "x"), 3)
    script = one("RUN <<EOF\nset -e\necho hi\nEOF\n")
    assert (script.argv, script.args) == (("/bin/sh", "-c", "set -e\necho hi\n"), ("set -e …",))
    python = one("RUN <<EOF\n#!/usr/bin/python3\nprint(1)\nEOF")
    assert python.variables["AENV_SCRIPT"] == "#!/usr/bin/python3\nprint(1)\n"
    piped = one("RUN python3 <<EOF > /x\nprint(1)\nEOF")
    assert piped.argv[-1] == "python3 <<EOF > /x\nprint(1)\nEOF\n"


def test_arguments() -> None:
    source = "ARG V=1\nARG W\nFROM img:$V AS a\nARG V\nARG X=$V-x\nARG Y\nRUN r\nFROM a\nRUN s\n"
    first, last = recipe(source, Y="why").stages
    assert first.origin == "img:1"
    assert first.steps[0].variables == {"V": "1", "X": "1-x", "Y": "why"}
    assert last.steps[0].variables == {}, "arguments end with their stage"
    assert recipe(source, V="2").stages[0].origin == "img:2"
    assert recipe("FROM b", Z="1").notes == ("no ARG takes the build argument Z",)
    assert set(one("ARG TARGETOS\nRUN x").variables) == {"TARGETOS"}


def test_env_is_for_the_server_to_fill_and_for_sources_here() -> None:
    env, *copies = steps("ENV A=a B='$A'\nCOPY $A-x '$A' $HOME/")
    assert env.args == ("A", "a", "B", r"\$A")
    assert [copy.args[:2] for copy in copies] == [("a-x", "$HOME/"), (r"\$A", "$HOME/")]


def test_copy() -> None:
    found = steps('COPY --chown=a:b --chmod=755 x y/ /z/\nCOPY ["a b", "."]\nCOPY . /all')
    assert [step.args for step in found] == [
        ("x", "/z/", "a:b", "755"),
        ("y", "/z/", "a:b", "755"),
        ("a b", ".", "", ""),
        (".", "/all", "", ""),
    ]
    assert found[1].files == Files("y")


def test_inline_files_and_archives_and_urls() -> None:
    (doc,) = steps("ARG N=me\nCOPY <<conf /etc/\nhi $N\nconf\n")
    assert doc.files == Files("conf", content=b"hi me\n")
    (raw,) = steps("COPY <<'conf' /etc/\nhi $N\nconf\n")
    assert raw.files == Files("conf", content=b"hi $N\n")
    tar = one("ADD rootfs.tar.xz /")
    assert (tar.args[0], tar.files) == (".", Files("rootfs.tar.xz", unpack=True))
    url = one("ADD --checksum=sha256:ab https://h/p/f.tgz?x /opt/")
    assert url.args == ("f.tgz", "/opt/", "", "0600")
    assert url.files == Files("f.tgz", url="https://h/p/f.tgz?x", checksum="sha256:ab")


def test_caches() -> None:
    assert one("RUN --mount=type=cache,target=/c --mount=type=cache,dst=/d x").caches == (
        "/c",
        "/d",
    )


def test_stages_that_nothing_needs_are_left_out() -> None:
    source = (
        "FROM a AS one\nRUN 1\nFROM b AS unused\nRUN 2\nFROM one AS two\nRUN 3\n"
        "FROM c\nCOPY --from=two /x /y\nCOPY --from=0 /z /y\nCOPY --from=nginx:1 /etc /e\n"
        "COPY --from=nginx:1 /var /e\n"
    )
    found = recipe(source)
    assert [(s.name, s.origin) for s in found.stages] == [
        ("from nginx:1", "nginx:1"),
        ("one", "a"),
        ("two", "one"),
        ("stage-3", "c"),
    ]
    lenders = [step.stage for step in found.last.steps]
    assert lenders == ["two", "one", "from nginx:1", "from nginx:1"]
    assert [s.name for s in recipe(source, target="unused").stages] == ["unused"]


def test_what_the_image_says_of_itself() -> None:
    last = recipe(
        'ARG P=81\nFROM b AS x\nENTRYPOINT ["e"]\nCMD c\nFROM x\nARG P\nCMD ["d"]\n'
        "EXPOSE 80 $P/udp\n"
    ).last
    assert (last.entrypoint, last.cmd) == (("e",), ("d",))
    assert last.ports == ["80/tcp", "81/udp"]
    reset = recipe('FROM b\nCMD ["c"]\nENTRYPOINT run').last
    assert (reset.entrypoint, reset.cmd) == (("/bin/sh", "-c", "run"), ())


def test_what_has_no_effect_is_said() -> None:
    assert recipe("FROM b\nVOLUME /x\nHEALTHCHECK --interval=1s CMD x\nLABEL a=b").notes == (
        "Dockerfile:2: VOLUME has no effect",
        "Dockerfile:3: HEALTHCHECK has no effect",
    )


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("RUN x", 1, "before the first FROM"),
        ("", 1, "no FROM"),
        ("FROM scratch", 1, "nothing to run"),
        ("FROM a b", 1, "FROM takes"),
        ("FROM a AS x\nFROM b AS X", 2, "already"),
        ("FROM a\nCOPY ../x /y", 2, "out of the context"),
        ("FROM a\nCOPY x", 2, "a source and a destination"),
        ("FROM a\nCOPY x y /z", 2, "ends with /"),
        ("FROM a\nCOPY https://h/x /y", 2, "ADD does"),
        ("FROM a\nCOPY --parents x /y", 2, "--parents"),
        ("FROM a\nCOPY --chmod=u+x x /y", 2, "octal"),
        ("FROM a AS me\nCOPY --from=me x /y", 2, "of itself"),
        ("FROM a\nRUN --mount=type=secret,id=x y", 2, "type=secret"),
        ("FROM a\nRUN --security=insecure y", 2, "--security"),
        ("FROM a\nEXPOSE http", 2, "no port"),
        ("FROM a\nSHELL bash", 2, "JSON"),
        ("FROM a\nONBUILD RUN x", 2, "ONBUILD"),
        ("FROM ${X:?say which}", 1, "say which"),
        ("FROM a\nADD https://h/r.git /x", 2, "no file"),
    ],
)
def test_mistakes_name_their_line(source: str, line: int, words: str) -> None:
    with pytest.raises(DockerfileError) as fault:
        recipe(source)
    assert str(fault.value).startswith(f"Dockerfile:{line}: ")
    assert words in str(fault.value)


def test_an_unknown_target() -> None:
    with pytest.raises(DockerfileError):
        recipe("FROM a", target="nope")
