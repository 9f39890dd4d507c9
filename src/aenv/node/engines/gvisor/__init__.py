"""The gVisor engine: sandboxes with a kernel of their own, through a pinned runsc.

``engine`` makes machines, ``machine`` is one; ``config`` writes what runsc reads, ``commands``
runs it, ``control`` speaks to a running sandbox's socket, ``bundle`` names the files, ``exits``
says whose doing an end was.
"""
