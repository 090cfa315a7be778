"""Load a warehouse from a stream joined with master data.

The app is in the package, see its --help.
"""

import sys

from semistream.spark_apps.semi_stream_join import main

if __name__ == "__main__":
    sys.exit(main())
