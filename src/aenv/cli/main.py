"""The ``aenv`` command."""

from __future__ import annotations

import sys
from typing import NoReturn

from aenv.cli import (  # noqa: F401 - each registers its commands
    copies,
    dockerfiles,
    hosts,
    lifecycles,
    logs,
    metrics,
    ports,
    profiles,
    pulls,
    sandboxes,
    servers,
    shells,
    snapshots,
    stores,
    templates,
    trees,
    volumes,
)
from aenv.cli.apps import app, common


def main() -> NoReturn:
    """Exit code 0, 1 (failed), 2 (wrong usage), or that of the command ``exec`` ran; 124, 126 and
    127 as of ``timeout`` and the shells, 125 where ``exec`` itself failed.
    """
    from aenv.models.errors import AenvError

    try:
        app(prog_name="aenv")
    except (AenvError, OSError) as error:
        if common.debug:
            raise
        from aenv.cli.outputs import failure

        failure(error)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _exit_code(error: Exception) -> int:
    from aenv.models import errors

    codes: dict[type[Exception], int] = {
        errors.CommandTimeoutError: 124,
        errors.CommandNotExecutableError: 126,
        errors.CommandNotFoundError: 127,
    }
    return codes.get(type(error), common.failed)


if __name__ == "__main__":
    main()
