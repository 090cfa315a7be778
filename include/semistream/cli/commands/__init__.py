"""The commands of the console, one file a command.

A file imports at its top only what is light, because the list of commands imports all of them.
"""
