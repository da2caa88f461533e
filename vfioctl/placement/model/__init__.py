"""Values of placement: requests, capacity, and the result. May not do input or output."""
