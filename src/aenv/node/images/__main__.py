"""``python -m aenv.node.images NAME``: see ``worker``."""

import sys

from aenv.node.images.worker import main

sys.exit(main())
