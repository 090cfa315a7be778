"""Publish the snapshots of a job's dimensions.

The app is in the package, see its --help.
"""

import sys

from semistream.spark_apps.publish_snapshot import main

if __name__ == "__main__":
    sys.exit(main())
