"""The parts that screens are made of. May not call the library."""
