"""Whose doing an end is."""

from __future__ import annotations

import pytest

from aenv.models.errors import Culprit
from aenv.models.sandboxes import Resources, SandboxExit
from aenv.node.engines.gvisor.exits import classify
from aenv.node.supervisor.client import Ending


def end(
    ending: Ending,
    *,
    gofer: Ending | None = None,
    oom_kills: int = 0,
    panic: str = "",
    log: str = "",
    console: str = "",
) -> SandboxExit:
    return classify(
        "i" * 20,
        ending,
        gofer=gofer,
        oom_kills=oom_kills,
        panic=panic,
        log=log,
        console=console,
        resources=Resources(memory_mb=512),
    )


@pytest.mark.parametrize(
    ("exit", "code", "culprit", "words"),
    [
        (end(Ending(code=0)), 0, Culprit.POLICY, "init ended with code 0"),
        (end(Ending(code=137)), 137, Culprit.POLICY, "init ended by SIGKILL"),
        (end(Ending(code=2), console="x\npanic: oh"), 2, Culprit.POLICY, "panic: oh"),
        (
            end(Ending(code=2), panic="panic: sentry\n..."),
            2,
            Culprit.INFRASTRUCTURE,
            "panic: sentry",
        ),
        (end(Ending(code=128), log="fatal: no"), 128, Culprit.INFRASTRUCTURE, "fatal: no"),
        (end(Ending(signal=9)), 137, Culprit.INFRASTRUCTURE, "killed from outside (SIGKILL)"),
        (end(Ending(signal=9), oom_kills=1), 137, Culprit.POLICY, "more than its 512 MiB"),
        (end(Ending(code=137), oom_kills=2), 137, Culprit.POLICY, "out of memory"),
        (end(Ending(code=1), oom_kills=2), 1, Culprit.POLICY, "init ended with code 1"),
        (end(Ending(signal=11)), 139, Culprit.INFRASTRUCTURE, "SIGSEGV"),
        (
            end(Ending(code=137), gofer=Ending(signal=9)),
            137,
            Culprit.INFRASTRUCTURE,
            "file server was killed from outside (SIGKILL)",
        ),
        (end(Ending(code=137), gofer=Ending(code=0)), 137, Culprit.POLICY, "init ended by SIGKILL"),
        (end(Ending(code=137), gofer=Ending(signal=9), oom_kills=1), 137, Culprit.POLICY, "memory"),
        (end(Ending(code=250)), 250, Culprit.POLICY, "signal 122"),
        (end(Ending()), None, Culprit.INFRASTRUCTURE, "unknown"),
    ],
)
def test_an_end_names_its_culprit(
    exit: SandboxExit,  # noqa: A002  the noun
    code: int | None,
    culprit: Culprit,
    words: str,
) -> None:
    assert (exit.code, exit.culprit) == (code, culprit)
    assert words in exit.reason
