"""The manual: what the commands say of themselves, the variables, exit codes and files, as man pages and as text."""
