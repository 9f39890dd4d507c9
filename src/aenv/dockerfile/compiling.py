"""Each instruction of a Dockerfile as steps of its stage."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from aenv.dockerfile.reading import Dockerfile, Instruction
from aenv.dockerfile.stages import (
    BuildStep,
    Files,
    Recipe,
    Scope,
    Stage,
    begun,
    borrowed,
    needed,
    step,
)

_SCRIPT = "/dev/shm/aenv-script"  # noqa: S108 - in the guest, of one step
_RUN_SCRIPT = (
    f'printf %s "$AENV_SCRIPT" > {_SCRIPT} && chmod 700 {_SCRIPT} && unset AENV_SCRIPT && '
    f"{_SCRIPT}; status=$?; rm -f {_SCRIPT}; exit $status"
)
_URL = ("http://", "https://")
_ARCHIVE = re.compile(r".*\.(tar|tar\.gz|tgz|tar\.bz2|tbz2?|tar\.xz|txz)\Z")
_OCTAL = re.compile(r"[0-7]{3,5}\Z")
_WITHOUT_EFFECT = frozenset({"MAINTAINER", "LABEL", "VOLUME", "STOPSIGNAL", "HEALTHCHECK"})
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def compiled(
    source: Dockerfile, arguments: Mapping[str, str] | None = None, target: str | None = None
) -> Recipe:
    """``arguments``: of ``--build-arg``; ``target``: the stage to build instead of the last.

    DockerfileError names the line of what cannot be built.
    """
    scope = Scope(source, arguments or {})
    scope.globals.update(_platform())
    current: Stage | None = None
    for one in source.instructions:
        if one.name == "FROM":
            if current is not None and target and current.name == target.lower():
                break
            current = begun(scope, one)
            scope.stages.append(current)
        elif current is None:
            _before_from(scope, one)
        else:
            _HANDLERS[one.name](scope, current, one)
    if current is None:
        raise scope.fault(1, "there is no FROM")
    if target and current.name != target.lower():
        raise scope.fault(1, f"there is no stage {target!r}")
    unused = sorted(set(scope.given) - scope.used)
    scope.notes += [f"no ARG takes the build argument {name}" for name in unused]
    before = [stage for stage in scope.stages if stage is not current]
    stages = needed([*scope.images, *before, current])
    return Recipe(source.file, source.escape, stages, tuple(scope.notes))


def _platform() -> dict[str, str]:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    found: dict[str, str] = {}
    for side in ("TARGET", "BUILD"):
        found |= {f"{side}OS": "linux", f"{side}ARCH": machine, f"{side}VARIANT": ""}
        found[f"{side}PLATFORM"] = f"linux/{machine}"
    return found


def _before_from(scope: Scope, one: Instruction) -> None:
    if one.name != "ARG":
        raise scope.fault(one.line, f"{one.name} stands before the first FROM")
    for name, value in scope.argument(one, scope.globals):
        if value is not None:
            scope.globals[name] = value


def _arg(scope: Scope, stage: Stage, one: Instruction) -> None:
    for name, value in scope.argument(one, stage.known):
        value = value if value is not None else scope.globals.get(name)
        if value is not None:
            stage.arguments[name] = value


def _env(scope: Scope, stage: Stage, one: Instruction) -> None:
    pairs = scope.pairs(one)
    stage.steps.append(step(scope, stage, one, "ENV", *(part for pair in pairs for part in pair)))
    known = stage.known
    stage.env.update({name: scope.expand(one, value, known) for name, value in pairs})


def _run(scope: Scope, stage: Stage, one: Instruction) -> None:
    caches = tuple(_cache(scope, stage, one, value) for value in _mounts(scope, one))
    made = step(scope, stage, one, "RUN", one.text)
    if one.words is not None:
        argv = one.words
    elif len(one.heredocs) == 1 and re.fullmatch(r"<<-?\s*['\"]?[^\s<>'\"]+['\"]?", one.text):
        script = one.heredocs[0].content
        made = replace(made, args=(_title(script),))
        argv = (*stage.shell, script)
        if script.startswith("#!"):
            argv = ("/bin/sh", "-c", _RUN_SCRIPT)
            made = replace(made, variables={**made.variables, "AENV_SCRIPT": script})
    else:
        bodies = "".join(f"\n{doc.content}{doc.name}" for doc in one.heredocs)
        argv = (*stage.shell, one.text + bodies + ("\n" if bodies else ""))
    if not argv[-1].strip():
        raise scope.fault(one.line, "RUN of nothing")
    stage.steps.append(replace(made, argv=argv, caches=caches))


def _title(script: str) -> str:
    lines = [line for line in script.splitlines() if line.strip()]
    return lines[0] + (" …" if len(lines) > 1 else "") if lines else "(an empty script)"


def _mounts(scope: Scope, one: Instruction) -> list[str]:
    for name, value in one.flags:
        if name not in ("mount", "network") or (name, value) in (
            ("network", "host"),
            ("network", "none"),
        ):
            raise scope.fault(one.line, f"RUN --{name}={value} is not served")
    return [value for name, value in one.flags if name == "mount"]


def _cache(scope: Scope, stage: Stage, one: Instruction, text: str) -> str:
    """The folder of a cache mount."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if fields.get("type") != "cache":
        kind = fields.get("type", "bind")
        raise scope.fault(one.line, f"RUN --mount=type={kind} is not served, only type=cache is")
    target = fields.get("target") or fields.get("dst") or fields.get("destination")
    if not target:
        raise scope.fault(one.line, "RUN --mount=type=cache needs a target")
    path = scope.expand(one, target, stage.known)
    if not path.startswith("/"):
        raise scope.fault(one.line, f"the target of a cache is an absolute path, not {path!r}")
    return path


def _copy(scope: Scope, stage: Stage, one: Instruction) -> None:
    *sources, target = list(one.words) if one.words is not None else scope.split(one)
    if not sources:
        raise scope.fault(one.line, f"{one.name} takes a source and a destination")
    owner, mode = _ownership(scope, stage, one)
    if len(sources) > 1 and not target.endswith("/") and target not in (".", ".."):
        raise scope.fault(one.line, "with several sources the destination ends with /")
    lender = one.flag("from")
    if lender is not None:
        if one.name == "ADD":
            raise scope.fault(one.line, "ADD takes no files of stages; COPY does")
        lender = borrowed(scope, one, scope.expand(one, lender, scope.globals | stage.known))
    heredocs = {doc.name: doc for doc in one.heredocs}
    for text in sources:
        source = scope.expand(one, text, stage.known)
        made = step(scope, stage, one, "COPY", scope.literal(source), target, owner, mode)
        if lender is not None:
            stage.steps.append(replace(made, stage=lender))
        else:
            stage.steps.append(_of_context(scope, stage, one, made, source, heredocs))


def _of_context(
    scope: Scope,
    stage: Stage,
    one: Instruction,
    made: BuildStep,
    source: str,
    heredocs: Mapping[str, object],
) -> BuildStep:
    name = source.removeprefix("<<").removeprefix("-").strip("'\"")
    if source.startswith("<<") and name in heredocs:
        doc = next(doc for doc in one.heredocs if doc.name == name)
        text = scope.expand(one, doc.content, stage.known) if doc.expand else doc.content
        args = (scope.literal(name), *made.args[1:])
        return replace(made, args=args, files=Files(name, content=text.encode()))
    if source.startswith(_URL):
        if one.name == "COPY":
            raise scope.fault(one.line, "COPY takes no URLs; ADD does")
        return _of_url(scope, one, made, source)
    path = _inside(scope, one, source)
    if one.name == "ADD" and _ARCHIVE.match(path):
        return replace(made, args=(".", *made.args[1:]), files=Files(path, unpack=True))
    return replace(made, args=(scope.literal(path), *made.args[1:]), files=Files(path))


def _of_url(scope: Scope, one: Instruction, made: BuildStep, url: str) -> BuildStep:
    name = urlsplit(url).path.rpartition("/")[2]
    if url.endswith(".git") or not name:
        raise scope.fault(one.line, f"ADD {url}: it names no file")
    files = Files(name, url=url, checksum=one.flag("checksum"))
    mode = made.args[3] or "0600"
    return replace(made, args=(scope.literal(name), *made.args[1:3], mode), files=files)


def _inside(scope: Scope, one: Instruction, source: str) -> str:
    """A path of the context, as a COPY may name it."""
    parts = [part for part in source.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise scope.fault(one.line, f"{source!r} leads out of the context")
    return "/".join(parts) or "."


def _ownership(scope: Scope, stage: Stage, one: Instruction) -> tuple[str, str]:
    for name, _ in one.flags:
        if name not in ("from", "chown", "chmod", "link", "checksum"):
            raise scope.fault(one.line, f"{one.name} --{name} is not served")
    owner = scope.expand(one, one.flag("chown") or "", stage.known)
    mode = scope.expand(one, one.flag("chmod") or "", stage.known)
    if mode and not _OCTAL.match(mode):
        raise scope.fault(one.line, f"--chmod={mode}: octal digits, as in 0755")
    return scope.literal(owner), mode


def _workdir(scope: Scope, stage: Stage, one: Instruction) -> None:
    stage.steps.append(step(scope, stage, one, "WORKDIR", scope.unquoted(one)))


def _user(scope: Scope, stage: Stage, one: Instruction) -> None:
    stage.steps.append(step(scope, stage, one, "USER", scope.unquoted(one)))


def _entrypoint(scope: Scope, stage: Stage, one: Instruction) -> None:
    stage.entrypoint = one.words if one.words is not None else (*stage.shell, one.text)
    stage.cmd = ()


def _cmd(scope: Scope, stage: Stage, one: Instruction) -> None:
    stage.cmd = one.words if one.words is not None else (*stage.shell, one.text)


def _expose(scope: Scope, stage: Stage, one: Instruction) -> None:
    for word in scope.split(one):
        port = scope.expand(one, word, stage.known)
        if not re.fullmatch(r"[0-9]+(-[0-9]+)?(/(tcp|udp|sctp))?", port):
            raise scope.fault(one.line, f"{port[:64]!r} is no port")
        stage.ports.append(port if "/" in port else f"{port}/tcp")


def _shell(scope: Scope, stage: Stage, one: Instruction) -> None:
    if not one.words:
        raise scope.fault(one.line, 'SHELL takes a JSON array, as in ["/bin/bash", "-c"]')
    stage.shell = one.words


def _without_effect(scope: Scope, stage: Stage, one: Instruction) -> None:
    if one.name not in ("LABEL", "MAINTAINER"):
        scope.notes.append(f"{scope.file}:{one.line}: {one.name} has no effect")


def _onbuild(scope: Scope, stage: Stage, one: Instruction) -> None:
    raise scope.fault(one.line, "ONBUILD is not served")


_HANDLERS: dict[str, Callable[[Scope, Stage, Instruction], None]] = {
    "ARG": _arg,
    "ENV": _env,
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "WORKDIR": _workdir,
    "USER": _user,
    "ENTRYPOINT": _entrypoint,
    "CMD": _cmd,
    "EXPOSE": _expose,
    "SHELL": _shell,
    "ONBUILD": _onbuild,
    **dict.fromkeys(_WITHOUT_EFFECT, _without_effect),
}
