"""model -> Plan. Pure: no input or output, no clock, no randomness, no environment."""
