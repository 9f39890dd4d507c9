"""One server per data folder: claiming the folder, and who holds it; its folders are private."""

from __future__ import annotations

from aenv.store.locks import DataLock as DataLock
from aenv.store.locks import is_locked as is_locked
from aenv.store.locks import owner as owner
from aenv.store.private import make_private as make_private
