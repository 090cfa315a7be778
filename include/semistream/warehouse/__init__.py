"""The warehouse: dimension, fact and ledger tables on SQLite or MySQL."""
