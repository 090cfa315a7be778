"""Submit a job of SQL statements to a Flink cluster, and print the job's id. The program runs in
the Python that has PyFlink.

It reads JSON from standard input: "configuration", and "statements", the last of which is the
INSERT.
"""

import json
import sys

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment


def main() -> None:
    job = json.load(sys.stdin)
    configuration = Configuration()
    for name, value in job["configuration"].items():
        configuration.set_string(name, str(value))
    settings = EnvironmentSettings.new_instance().with_configuration(configuration).build()
    environment = TableEnvironment.create(settings)
    for statement in job["statements"]:
        result = environment.execute_sql(statement)
    print(f"job {result.get_job_client().get_job_id()}")


if __name__ == "__main__":
    main()
