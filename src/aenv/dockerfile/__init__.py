"""Dockerfiles, read without Docker: instructions, stages, ignore rules, and the files of a context.

Knows the models alone. Errors name the file and the line.
"""
