"""Plans changes as documents and applies them: engine, journal, rollback, recovery. May not know any subsystem."""
