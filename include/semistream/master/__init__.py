"""Master data: the relation R that a stream is joined with."""

from semistream.master.publish import Publication, current_manifest, pin, publish_snapshot
from semistream.master.relation import MasterRelation
from semistream.master.snapshot import Manifest, SnapshotRelation, open_snapshot
from semistream.published import current_version

__all__ = ["Manifest", "MasterRelation", "Publication", "SnapshotRelation", "current_manifest", "current_version",
           "open_snapshot",
           "pin", "publish_snapshot"]
