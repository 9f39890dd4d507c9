"""The nouns: ids, durations, errors, sandboxes, templates, folders.

No behaviour beyond validation, no I/O. Imports nothing of ours.
"""
