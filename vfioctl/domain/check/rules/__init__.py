"""The rules that a document of a domain must hold, by itself and on a host. Pure."""
