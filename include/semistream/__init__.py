"""Load a warehouse from a stream, enriched with master data, in bounded memory."""

import os

# Arrow's allocator, unless the user names another one: its default, mimalloc, keeps more of what
# was freed, 20 MB of an idle process and some 40 MB of one that joins.
ARROW_POOL = os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
