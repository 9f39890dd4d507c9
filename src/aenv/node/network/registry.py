"""Who holds which slot on this host: one folder for all instances, one small file per slot.

Claims happen under one lock. A file belongs to the instance it names, which alone rewrites it. It
may be taken over when it is from before the last boot, or when its instance does not run and its
namespace is gone: sandboxes outlive their server, so a server that is down still holds the slots of
its sandboxes. The folder is closed to other users: whoever may open the lock may hold it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aenv.models.sandboxes import NetworkPolicy
from aenv.store.private import make_private

_POLICY_FIELDS = ("allow_internet", "allow_out", "deny_out", "dns_servers")


@dataclass(frozen=True, slots=True)
class Claim:
    """One slot's entry. ``policy`` is what its sandbox may reach; none: it waits in the pool."""

    index: int
    instance: str
    boot_id: str
    sandbox_id: str | None = None
    policy: NetworkPolicy = field(default_factory=NetworkPolicy)


class Registry:
    """``netns_exists(instance, index)`` says whether a slot's namespace is there."""

    def __init__(
        self,
        folder: Path,
        instance: str,
        boot_id: str,
        netns_exists: Callable[[str, int], bool],
    ) -> None:
        self._folder = folder
        self._instance = instance
        self._boot_id = boot_id
        self._netns_exists = netns_exists
        self._holder: int | None = None

    def open(self) -> None:
        """Say that this instance runs, until :meth:`close` or the end of the process. The files of
        instances that were killed and hold nothing any more go.
        """
        if self._holder is not None:
            return
        with self.locked():
            self._holder = os.open(
                self._holder_file(self._instance), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._holder, fcntl.LOCK_SH)
            self._sweep()

    def _sweep(self) -> None:
        holding = {claim.instance for claim in self._all() if not self._is_abandoned(claim)}
        for path in self._folder.glob("*.holder"):
            if path.stem not in {*holding, self._instance} and not self._runs(path.stem):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """An instance that holds no slot leaves no file."""
        if self._holder is None:
            return
        if not self.mine():
            self._holder_file(self._instance).unlink(missing_ok=True)
        os.close(self._holder)
        self._holder = None

    def claim(self, candidates: Iterator[int]) -> Claim | None:
        """The first of ``candidates`` that is free, now ours."""
        with self.locked():
            for index in candidates:
                held = self._read(index)
                if held is None or self._is_abandoned(held):
                    claim = Claim(index, self._instance, self._boot_id)
                    self.write(claim)
                    return claim
        return None

    def write(self, claim: Claim) -> None:
        """Replace our entry for a slot we hold."""
        target = self._file(claim.index)
        staged = target.with_name(f".{claim.index}.{self._instance}")
        staged.write_text(json.dumps(_encode(claim)))
        staged.replace(target)

    def free(self, index: int) -> None:
        with self.locked():
            held = self._read(index)
            if held is not None and held.instance == self._instance:
                self._file(index).unlink(missing_ok=True)

    def mine(self) -> list[Claim]:
        """Our entries of this boot; those of earlier boots are dropped."""
        with self.locked():
            ours = [claim for claim in self._all() if claim.instance == self._instance]
            for claim in ours:
                if claim.boot_id != self._boot_id:
                    self._file(claim.index).unlink(missing_ok=True)
        return [claim for claim in ours if claim.boot_id == self._boot_id]

    def others_present(self) -> bool:
        """Whether another instance runs or holds a slot on this host. Call it :meth:`locked`."""
        holders = (path.stem for path in self._folder.glob("*.holder"))
        if any(name != self._instance and self._runs(name) for name in holders):
            return True
        return any(
            claim.instance != self._instance and not self._is_abandoned(claim)
            for claim in self._all()
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        make_private(self._folder)
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _all(self) -> list[Claim]:
        indexes = (int(path.name) for path in self._folder.iterdir() if path.name.isdigit())
        return [claim for index in sorted(indexes) if (claim := self._read(index)) is not None]

    def _read(self, index: int) -> Claim | None:
        """None when nobody holds it; an entry that cannot be read counts as another boot's."""
        try:
            return _decode(index, json.loads(self._file(index).read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return Claim(index, instance="", boot_id="")

    def _is_abandoned(self, claim: Claim) -> bool:
        if claim.boot_id != self._boot_id:
            return True
        if claim.instance == self._instance or self._runs(claim.instance):
            return False
        return not self._netns_exists(claim.instance, claim.index)

    def _runs(self, instance: str) -> bool:
        try:
            fd = os.open(self._holder_file(instance), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _file(self, index: int) -> Path:
        return self._folder / str(index)

    def _holder_file(self, instance: str) -> Path:
        return self._folder / f"{instance}.holder"


def _encode(claim: Claim) -> dict[str, Any]:
    policy = asdict(claim.policy)
    return {
        "instance": claim.instance,
        "boot_id": claim.boot_id,
        "sandbox_id": claim.sandbox_id,
        "policy": {name: policy[name] for name in _POLICY_FIELDS},
    }


def _decode(index: int, entry: dict[str, Any]) -> Claim:
    policy = entry["policy"]
    return Claim(
        index=index,
        instance=str(entry["instance"]),
        boot_id=str(entry["boot_id"]),
        sandbox_id=entry["sandbox_id"],
        policy=NetworkPolicy(
            allow_internet=bool(policy["allow_internet"]),
            allow_out=tuple(policy["allow_out"]),
            deny_out=tuple(policy["deny_out"]),
            dns_servers=tuple(policy["dns_servers"]),
        ),
    )
