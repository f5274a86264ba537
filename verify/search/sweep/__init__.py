"""Sweeps exhaustively: judges every input of a kernel, so that its maximum error is proven.

    space = serve.space_of(kernel, "accuracy.py::my_gelu", "bfloat16")
    partial = checking.check(kernel, space, (0, space.chunks), backend)      # or chunk by chunk, anywhere, in any order
    done = finishing.finish(kernel, space, partial)                 # a verify.records.record.KernelRun

A `Space` is JSON and lists the inputs to enumerate. Its chunks are numbered and do not depend on the machine or on the
number of workers. A `Partial` is JSON and merges with others of the same space. Merging is associative and commutative:
the result has the same bits for every division of the chunks. Covering a chunk twice is an error.
"""
