"""Backup: one encrypted file with everything an installation is, and its way back."""
