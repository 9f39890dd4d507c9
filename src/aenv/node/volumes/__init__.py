"""Volumes on this host: ``store`` is the port to where they are kept (an engine's pool of disks is
one), ``trees`` and ``content`` the work on their files. Imports the host boundary and models.
"""
