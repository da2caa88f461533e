"""What each screen lists, and the details of one row. May not call textual."""
