"""The commands of the console, one file for each.

A file imports only light modules at its top, because listing the commands imports all files.
"""
