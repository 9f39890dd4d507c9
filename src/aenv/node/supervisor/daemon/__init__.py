"""The supervisor process. One thread, one selector loop; nothing here may import outside the
standard library.

It runs as a top-level package named ``daemon`` (see ``client.launch``), so that neither
site-packages nor the rest of aenv is loaded: its memory is paid for every server, and an upgrade
of aenv must not break one that is running. A *record* is a process somebody wants to hear about:
it has a key, its start and end are in the journal, and it is kept until forgotten. A *run* is a
short command whose result answers one request.
"""
