"""Files that are whole or not there, records that are written once, locks, watching, and where a test may kill."""
