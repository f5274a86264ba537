"""Reports: sinks of one `verify.records.record.Run`, for the terminal, a pull request and the browser.

`terminal.render`, `markdown.render` and `html.render` each turn a run into one string. None of them
measures or judges anything: figures, statuses and limits are the record's, `words` says how figures
are written, and `verdict` what they amount to. rich and jinja2 are imported inside the render
functions, so that the command line starts fast.
"""
