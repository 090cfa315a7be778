"""Load a warehouse from a stream, enriched with master data, in bounded memory."""

import os

# PyArrow's allocator, unless the user names another one: the default, mimalloc, keeps several
# times as much of what was freed.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
