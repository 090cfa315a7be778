"""What lives in Spark's Python workers from one task to the next, and goes from one worker to
another.

Spark runs each task of a micro-batch in a Python worker process, which it keeps for later tasks.
Which worker gets which partition changes from one micro-batch to the next. Two things are worth
keeping in these processes:

Operators (``operators``)
    The join operator of a partition holds up to M/P bytes: waiting tuples, cached master tuples and
    their hash tables. After a micro-batch its worker keeps it in the ``OperatorCache``, and listens
    on a socket whose address is derived from the checkpoint, the partition and the state file. The
    worker that runs the partition next takes the operator from its own cache, or connects to that
    address and gets it: file descriptors of its memory, and the pickle of the rest. Nothing is
    copied. An operator that no worker has is restored from the saved state, which costs the reading
    of that state, a reset of I/O statistics and a cold page cache, but is always correct: the state
    file is written before a batch is committed.

Decoded tuples (``exchange``, used by ``parquet``)
    Where the stream is Parquet, every task needs tuples of all files, as any file has tuples of any
    partition. Instead of decoding each file P times, a task decodes its share of the row groups,
    splits them by partition, and publishes what belongs to the other partitions. A piece that no
    task has published yet is decoded by the task that needs it.

Processes find each other by abstract Unix sockets (``sockets``), which vanish with the process that
listens. They answer processes of the same user only. Everything here is an optimisation: a worker
that dies, or cannot be reached, costs time, never a tuple.

What each half is worth: ``python -m benchmarks workers --runs 3`` runs the app with and without
each in turn, P = 2, R of a million tuples, M of 36 MB. Medians in tuples a second, on two cores
that had much other work, so that they tell the order only: both 122,000; tuples shared only
106,000; operators passed only 134,000; neither 86,000. Passing operators is worth 16% to 57%.
Sharing tuples is worth 24% without the other half and nothing with it: to be measured again on a
quiet machine, and with more partitions, before it stays.
"""
