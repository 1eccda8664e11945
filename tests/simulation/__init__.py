"""Simulator: the broker, its syncer and its group commit on a simulated disk, clock, loop and thread scheduler.

    make simulate                                         until it is stopped, or a schedule fails
    make simulate ARGS="--seed=1 --schedules=10000"       that many, from a seed on
    make simulate ARGS="--seed=4711 --schedules=1"        one schedule again, shrunk and printed

A seed stands for a *schedule*: operations of clients and operators, faults, and what the kernel and the threads do, in
one order. Playing it is deterministic. After each step the broker's counts are compared with a model, at each start all
its messages, and at the end everything is drained and deleted. A schedule that fails is shrunk to the steps that matter
and printed as a line, to be put into `found.txt` with the fix.

    features     faults that only some ranges of seeds have
    schedule     steps made from a seed or a line, played, shrunk, printed
    operations   one method for each kind of step
    world        the machine: lives and deaths of the process, what is checked after each step
    adoption     what a start finds against what it must and may find
    model        topics, channels and messages as they should be
    process      broker, server, syncer and group commit, without threads
    loop         gevent's hub, as far as connections use it
    clients      NSQ's clients on socket pairs
    disk         files: page cache, stable storage, faults
    mirror       names of these files, by which the broker maps them again
    deaths       a death at any store into a mapped file
    unreadable   pages that cannot be read, and what may be missing for them
    segments     messages in the bytes of segments

A new operation is a method `do_NAME` of whole numbers in `operations`, with a line in `schedule.WEIGHTS`. It says in
`doubt` what may be done or not if the process dies in it, calls the broker, and then changes the model unless the
process is dead. A fault that is to be possible in more places is a kind in `disk`.
Schedules of a seed stay as they are: a new operation or kind of fault belongs to a feature.
"""
