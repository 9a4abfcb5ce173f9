"""The answer as JSON, files, a terminal screen or an HTML report."""
