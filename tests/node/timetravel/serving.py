"""A template with a start command: template ``host``, and a program that is asked through files."""

from __future__ import annotations

from dataclasses import replace

from aenv.models.templates import TemplateInfo
from aenv.node.images import ImageStore
from aenv.node.images.store import Image

SERVING = "host"

_PROGRAM = r"""
import sys; sys.path.append("/.aenv/python")
import aenv, json, os, random, socket, ssl, tempfile, threading, time, uuid
own, told, started = random.Random(), [], time.time()
random.random(), own.random(), ssl.RAND_bytes(1), uuid.uuid1()
unlinked = tempfile.TemporaryFile("w+"); unlinked.write("both "); unlinked.flush()
server = socket.create_server(("0.0.0.0", 8000))
def serve():
    while True:
        connection, _ = server.accept()
        connection.sendall(socket.gethostname().encode()); connection.close()
threading.Thread(target=serve, daemon=True).start()
aenv.on_restore(lambda restore: told.append([restore.mode, restore.sandbox_id]))
def put(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
put("/tmp/ready", "ready")
while not os.path.exists("/tmp/question"):
    time.sleep(0.01)
unlinked.write(socket.gethostname()); unlinked.seek(0)
put("/tmp/answer", json.dumps({
    "told": told, "urandom": os.urandom(8).hex(), "random": random.random(), "own": own.random(),
    "ssl": ssl.RAND_bytes(8).hex(), "hostname": socket.gethostname(), "started": started,
    "wall": time.time(), "uuid1": str(uuid.uuid1()), "pid": os.getpid(), "file": unlinked.read(),
    "called": os.environ.get("E2B_SANDBOX_ID", "")}))
time.sleep(1000)
"""
_START = f"""
mkdir -p /etc/aenv/restore.d
echo '#!/bin/sh
echo "$AENV_RESTORE $AENV_SANDBOX_ID" > /root/hooked' > /etc/aenv/restore.d/10-note
chmod 755 /etc/aenv/restore.d/10-note
mkdir -p /etc/ssh; echo shared > /etc/ssh/ssh_host_rsa_key; echo both > /tmp/file
cat > /tmp/program.py <<'END'
{_PROGRAM}
END
exec /usr/bin/python3 /tmp/program.py
"""


class ServingImages(ImageStore):
    async def list(self) -> list[TemplateInfo]:
        return [_serving(info) for info in await super().list()]

    async def open(self, name: str) -> Image:
        image = await super().open(name)
        return replace(image, info=_serving(image.info))

    async def open_exact(self, name: str, digest: str) -> Image | None:
        image = await super().open_exact(name, digest)
        return replace(image, info=_serving(image.info)) if image else None


def _serving(info: TemplateInfo) -> TemplateInfo:
    return replace(info, default_user="root", start_cmd=_START, ready_cmd="test -e /tmp/ready")
