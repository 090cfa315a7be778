"""Load a warehouse from a stream, enriched with master data, in bounded memory."""

import os

# Arrow's allocator, unless the user names another one. The default, mimalloc, retains more freed
# memory: 20 MB in an idle process, and some 40 MB in one that joins.
ARROW_POOL = os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
