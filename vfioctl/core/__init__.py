"""Changes as documents, and what carries them out: knows no PCI."""
