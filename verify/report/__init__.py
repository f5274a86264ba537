"""Turns one `verify.records.record.Run` into reports for the terminal, a pull request and the browser.

Each subject makes a document (`document`): a run in `run_table`, a verdict of the gate in `gate_words`, a comparison in
`compare_words`, changes of bounds in `bounds_words`, a bench in `bench_words`.
`terminal/` and `markdown/` lay a document out and know no subject; `html/` has the page of a run, with the documents
beside it. None of them measures or judges anything: figures, statuses and limits are the record's. `present` computes
the facts of a run, `result_words` those of one result. `words` formats figures and has the look of each status.
rich and jinja2 are imported inside the functions that use them, so that the command line starts fast.
"""
