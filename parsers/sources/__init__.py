"""Where bytes come from: files, folders, journals, object stores, compression, reading on."""
