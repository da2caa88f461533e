"""The threads that call the library, so that the screens never wait. May not draw."""
