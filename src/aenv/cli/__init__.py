"""The aenv command, one module per noun; imports stay lazy so that --help answers at once.

Imports everything below through its public face, inside the functions that need it.
"""
