"""The ``aenv`` command."""

from __future__ import annotations

import sys
from typing import NoReturn

from aenv.cli import (  # noqa: F401 - each registers its commands
    copies,
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
    templates,
    trees,
)
from aenv.cli.apps import app, common


def main() -> NoReturn:
    """Exit code 0, 1 (failed), 2 (wrong usage), or that of the command ``exec`` ran."""
    from aenv.models.errors import AenvError

    try:
        app(prog_name="aenv")
    except (AenvError, OSError) as error:
        if common.debug:
            raise
        from aenv.cli.outputs import failure

        failure(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
