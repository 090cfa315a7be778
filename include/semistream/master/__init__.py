"""Master data: the relation R that a stream is joined with."""

from semistream.master.publish import Publication, current_manifest, publish_snapshot
from semistream.master.relation import MasterRelation
from semistream.master.snapshot import Manifest, SnapshotRelation, open_snapshot

__all__ = ["Manifest", "MasterRelation", "Publication", "SnapshotRelation", "current_manifest", "open_snapshot",
           "publish_snapshot"]
