"""What is wrong with a Dockerfile, and where."""

from __future__ import annotations

from aenv.models.errors import InvalidRequestError


class DockerfileError(InvalidRequestError):
    """The message begins with ``FILE:LINE:``."""

    code = "bad_dockerfile"

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")
        self.file = file
        self.line = line
