"""What happens to a claim from its creation to its release."""
