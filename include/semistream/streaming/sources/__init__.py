"""The sources of streams: one file a system, a registry, and the contract of a source.

A new source subclasses ``base.Source``. If tasks can read it themselves, ``input`` returns
``contract.Splits`` with a ``contract.SplitReader``; otherwise Spark brings its records.
"""
