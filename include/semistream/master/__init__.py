"""Master data: the relation R with which a stream is joined."""

from semistream.master.manifest import Manifest
from semistream.master.publish import publish_snapshot
from semistream.master.relation import MasterRelation
from semistream.master.snapshot import SnapshotRelation, open_snapshot

__all__ = ["Manifest", "MasterRelation", "SnapshotRelation", "open_snapshot", "publish_snapshot"]
