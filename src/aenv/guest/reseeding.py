"""New randomness for the generators that this process keeps in its own memory.

Children of one snapshot share that memory: without this, ``random.random()`` gives the same numbers
in each. What asks the kernel every time needs nothing: ``os.urandom``, ``secrets``, ``uuid4``,
``random.SystemRandom``.

Reached are the module-level generators of ``random``, ``numpy.random`` and ``tempfile``, OpenSSL's
(``ssl``), and what ``uuid.uuid1`` remembers of the machine. Generator objects that a program has
made itself (``random.Random()``, ``numpy.random.default_rng()``) are its own: reseed them in a
callback of :func:`aenv.guest.on_restore`.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, List  # noqa: UP035  Python 3.8


def reseed() -> List[str]:  # noqa: UP006
    """Reseed what is loaded; returns what went wrong."""
    failures = []
    for name, renew in _RENEWALS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            renew(module)
        except Exception as error:  # noqa: BLE001  another one's module, perhaps half-loaded
            failures.append(f"cannot reseed {name}: {error!r}")
    return failures


def _seed(module: Any) -> None:
    module.seed()  # from os.urandom


def _stir(module: Any) -> None:
    module.RAND_add(os.urandom(64), 64.0)


def _forget_names(module: Any) -> None:
    module._name_sequence = None


def _forget_node(module: Any) -> None:
    module._node = module._last_timestamp = None


_RENEWALS: Dict[str, Callable[[Any], None]] = {  # noqa: UP006
    "random": _seed,
    "numpy.random": _seed,
    "ssl": _stir,
    "tempfile": _forget_names,
    "uuid": _forget_node,
}
