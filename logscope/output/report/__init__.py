"""An analysis as people read it: one renderer a file, and the words that they share."""
