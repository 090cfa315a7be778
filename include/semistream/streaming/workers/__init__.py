"""Objects that stay in Spark's Python workers from one task to the next, and are passed from one
worker to another.

Spark runs each task of a micro-batch in a Python worker process, which it keeps for later tasks.
Which worker gets which partition changes from one micro-batch to the next. One kind of object is
worth keeping in these processes: operators (``operators``).

The join operator of a partition holds up to M/P bytes: waiting tuples, cached master tuples and
their hash tables. After a micro-batch its worker keeps it in the ``OperatorCache``, and listens on
a socket whose address is derived from the checkpoint, the partition and the state file. The worker
that runs the partition next takes the operator from its own cache, or connects to that address and
gets it: file descriptors of its memory, and the pickle of the rest. Nothing is copied. An operator
that no worker has is restored from the saved state. This costs the reading of that state, a reset
of I/O statistics and a cold page cache, but is always correct: the state file is written before a
batch is committed. An operator of two streams is passed on only if it has never written to disk:
its files belong to the process that wrote them.

Processes find each other by abstract Unix sockets (``sockets``), which vanish with the process that
listens. They answer only processes of the same user. Everything here is an optimisation: a worker
that dies, or cannot be reached, costs time, never a tuple.

The benefit: ``python -m benchmarks workers --runs 3`` runs the app alternately with and without it,
with an R of a million tuples, M of 36 MB, and micro-batches of 200,000 tuples. On two cores, with
two partitions, the app is 1.55 times as fast with it (95% interval: 1.33 to 1.82). With eight
partitions on the same two cores it is 0.90 times as fast (0.78 to 1.04), which is not significant.

Formerly the tasks also decoded Parquet files for each other, each a share, and passed the tuples on
in files. In the same benchmark that gained 4%, and with micro-batches of a million tuples 2% (two
partitions, eight pairs of alternating runs), 9% (eight partitions) and -2% (sixteen, three pairs
each). Single pairs vary by more than that: from -6% to 30%. It was removed.
"""
