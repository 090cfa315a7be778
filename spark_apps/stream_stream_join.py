"""Load a warehouse from two streams joined with each other.

The app is in the package, see its --help.
"""

import sys

from semistream.spark_apps.stream_stream_join import main

if __name__ == "__main__":
    sys.exit(main())
