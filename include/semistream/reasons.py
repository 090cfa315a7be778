"""The reasons why a stream tuple is not in the fact table, or has no match there."""

from enum import StrEnum


class Reason(StrEnum):
    """The reason of a tuple in ``unmatched``. Tuples with a reason in ``QUARANTINED`` were refused
    before they could be joined."""

    NO_MATCH = "no_match"  # no master row has its key
    NULL_KEY = "null_key"
    NO_PARTNER = "no_partner"  # no tuple of the other stream has its key
    AGAINST_PUNCTUATION = "against_punctuation"  # its stream had said that no such tuple comes
    UNPARSABLE = "unparsable"
    LONG_ID = "long_id"  # its id is too long for an index of the warehouse


QUARANTINED = (Reason.AGAINST_PUNCTUATION, Reason.LONG_ID, Reason.UNPARSABLE)
