"""Worker processes, which the caller outlives: reads and writes that may block run there. Knows no file of Linux."""
