"""From evidence and replays to a verdict, findings and advice."""
