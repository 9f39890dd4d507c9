"""``doctor`` and ``setup``: what this host can do, and making it able to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SERVER, command, common, is_tty
from aenv.cli.outputs import emit, emit_json, note, table
from aenv.cli.sessions import run

if TYPE_CHECKING:
    from aenv.node.engine import Finding

_MARKS = {"ok": "✓", "warning": "!", "missing": "✗"}


@command("doctor", SERVER)
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Run the commands that mend it.")] = False,
    unfix: Annotated[
        bool, typer.Option("--unfix", help="Remove what --fix added to other firewalls.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before --fix.")] = False,
) -> None:
    """Tell what this host can do, what is missing, and the command that mends it."""
    from aenv.cli import checkups

    if unfix:
        for rule in run(checkups.close_firewalls()):
            note(f"$ nft {rule}")
    findings = run(checkups.examine())
    if fix:
        _mend(findings, yes=yes)
        findings = run(checkups.examine())
    if common.json:
        emit_json({"ok": not checkups.missing(findings), "findings": findings})
    else:
        _show(findings)
    raise typer.Exit(1 if checkups.missing(findings) else 0)


@command("setup", SERVER)
def setup(
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Build the base template too.")
    ] = True,
) -> None:
    """Prepare this host for gVisor: the pinned runsc, the disk pool, the base template."""
    from aenv.cli import setups

    done = run(setups.prepare(base=base))
    if common.json:
        emit_json(done)
    else:
        table(("what", "where"), list(done.items()))


def _show(findings: list[Finding]) -> None:
    width = max((len(finding.topic) for finding in findings), default=0)
    for finding in findings:
        emit(f"{_MARKS[finding.severity]} {finding.topic:<{width}}  {finding.summary}")
        if finding.fix:
            emit(f"  {'':<{width}}  → {finding.fix}")


def _mend(findings: list[Finding], *, yes: bool) -> None:
    import os
    import subprocess

    from aenv.cli.checkups import is_command, search_path

    fixes = list(dict.fromkeys(f.fix for f in findings if f.fix and f.severity != "ok"))
    for fix in filter(is_command, fixes):
        if not yes:
            if not is_tty(0):
                raise typer.BadParameter("--fix without a terminal needs -y")
            if not typer.confirm(f"Run `{fix}`?", default=True, err=True):
                continue
        note(f"$ {fix}")
        env = {**os.environ, "PATH": search_path()}
        code = subprocess.run(["/bin/sh", "-c", fix], stdout=2, env=env, check=False).returncode
        if code:
            note(f"aenv: it ended with status {code}")
