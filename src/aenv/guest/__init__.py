"""What programs inside a sandbox use of aenv: being told that they run on in a restored copy.

Standard library only, for any Python from 3.8 on: this package is also injected into sandboxes, at
``/.aenv/python``, where nothing else of aenv is. It imports nothing of aenv.

Importing it in a sandbox registers the process: after a fork its random generators are reseeded
(:mod:`aenv.guest.reseeding` says which), then the callbacks of :func:`on_restore` run, and only
then is the fork reported as ready.
"""

from aenv.guest.restores import Restore, on_restore

__all__ = ["Restore", "on_restore"]
