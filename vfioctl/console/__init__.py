"""Output, columns, options and failures, shared by all cli and render modules. May not know any subsystem."""
