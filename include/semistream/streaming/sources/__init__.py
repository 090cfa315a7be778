"""The sources of streams: one module for each system, a registry, and the contract of a source.

A new source subclasses ``base.Source``. If tasks can read the source themselves, ``input`` returns
``contract.Splits`` with a ``contract.SplitReader``; otherwise Spark brings the source's records.
"""
