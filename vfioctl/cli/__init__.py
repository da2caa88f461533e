"""The command line: parse, call the host, render, exit. One module per command, imported when it is called."""
