"""Reports: sinks of one `verify.records.record.Run`, for the terminal, a pull request and the browser.

A module of `terminal/`, `markdown/` or `html/` turns a run, a verdict of the gate or a comparison into one text. None
of them measures or judges anything: figures, statuses and limits are the record's. `present` works out what is said of
a run, `gate_words` and `compare_words` of a verdict and a comparison, `result_words` of one result. `words` says how
figures are written, and `signs` what a status looks like. rich and jinja2 are imported inside the functions that use
them, so that the command line starts fast.
"""
