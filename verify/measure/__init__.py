"""One kernel measured completely: calls, judging, statistics, special values, timings, and a run over many kernels."""
