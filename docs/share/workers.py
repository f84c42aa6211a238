"""Four processes count in one table, which is there once."""

import multiprocessing

import numpy as np

import interop


def count(h, first):
    table = interop.open(h, "numpy")  # the owner's memory itself
    table[first::4] += 1


if __name__ == "__main__":
    table = interop.empty(1_000_000, "int64", memory="host", shared=True)  # begins as 0
    context = multiprocessing.get_context("spawn")  # or "forkserver"
    with interop.share(table) as h:  # closed only after all have opened it
        workers = [context.Process(target=count, args=(h, first)) for first in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert (np.asarray(table) == 1).all()
    print("all counted")
