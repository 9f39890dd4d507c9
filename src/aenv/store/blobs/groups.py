"""Errors of work that was done side by side, as if it had been done one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aenv.models.errors import AenvError


@contextmanager
def unwrapped() -> Iterator[None]:
    """Of a group of errors the first of ours, else the first: the others follow from it."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        ours = [error for error in leaves if isinstance(error, AenvError)]
        raise (ours or leaves)[0] from group


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
