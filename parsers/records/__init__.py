"""vLLM's records: their prefix, several lines that are one record, dates without a year, servers and their starts."""
