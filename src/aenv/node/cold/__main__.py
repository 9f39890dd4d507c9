"""``python -m aenv.node.cold UPPER TARGET``: see ``worker``."""

import sys

from aenv.node.cold.worker import main

main(*sys.argv[1:])
