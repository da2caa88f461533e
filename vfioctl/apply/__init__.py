"""Plan -> the machine: the journal, the lock, the walk, the proof, the way back."""
