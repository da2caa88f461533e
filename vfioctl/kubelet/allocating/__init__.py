"""Gives devices to pods by claims, follows which pod has them, and takes them back."""
