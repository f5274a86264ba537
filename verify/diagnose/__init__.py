"""From a finding to its cause: replay, a script that shows it, compute-sanitizer, the step that makes the error."""
