# One image for Airflow, for Spark's master and workers, and for the `semistream` command.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM $PYTHON_IMAGE

RUN apt-get update \
 && apt-get install --yes --no-install-recommends default-jdk-headless procps \
 && rm -rf /var/lib/apt/lists/*

ENV JAVA_HOME=/usr/lib/jvm/default-java \
    PYSPARK_PYTHON=/usr/local/bin/python \
    SEMISTREAM_HOME=/var/lib/semistream

WORKDIR /opt/semistream
COPY requirements.lock requirements-tools.lock ./
# The lock file is complete, with all extras.
# Bytecode is made here: the image's user may not write it, and each process would compile all that it imports. Python's image has
# none of the standard library.
RUN python -m compileall -q -x '/(tests?|site-packages|dist-packages)/' \
        "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && pip install --no-cache-dir --require-hashes -r requirements-tools.lock \
 && uv pip install --system --no-cache --compile-bytecode --no-deps --require-hashes -r requirements.lock \
 && uv pip install --system --no-cache --compile-bytecode --no-deps psycopg2-binary==2.9.13 asyncpg==0.32.0

COPY pyproject.toml README.md ./
COPY include include
COPY dags dags
COPY plugins plugins
COPY spark_apps spark_apps
RUN uv pip install --system --no-cache --no-deps --editable . \
 && python -m compileall -q include dags plugins spark_apps \
 && useradd --create-home --uid 50000 semistream \
 && install --directory --owner=semistream "$SEMISTREAM_HOME" \
 && python -m semistream.streaming.archive spark.jsa
# Spark starts sooner with the archived classes, and takes less memory with a small first heap and the collector of one thread, where
# nobody names another one (see bootstrap.sh); what Numba compiles is kept with the data.
ENV SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=/opt/semistream/spark.jsa -Xlog:cds*=off \
-Xms64m -XX:NewSize=10m -XX:+NeverActAsServerClassMachine -XX:+TieredCompilation \
-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0" \
    NUMBA_CACHE_DIR=/var/lib/semistream/numba

USER semistream
