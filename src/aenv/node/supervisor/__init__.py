"""Who owns the processes: a small daemon per server instance that starts and reaps them and
outlives the server.

``daemon`` is that process (standard library only, never imports the rest of aenv), ``client`` the
server's side of its socket. May import ``models``.
"""
