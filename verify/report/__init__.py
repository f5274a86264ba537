"""Turns one `verify.records.record.Run` into reports for the terminal, a pull request and the browser.

A module of `terminal/`, `markdown/` or `html/` turns a run, a verdict of the gate or a comparison into one text. None
of them measures or judges anything: figures, statuses and limits are the record's. `present` computes the facts of a
run, `gate_words` and `compare_words` those of a verdict and a comparison, `result_words` those of one result. `words`
formats figures, and `signs` has the look of each status. rich and jinja2 are imported inside the functions that use
them, so that the command line starts fast.
"""
