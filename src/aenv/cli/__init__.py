"""The aenv command, one module per noun; imports stay lazy so that --help answers at once.
"""
