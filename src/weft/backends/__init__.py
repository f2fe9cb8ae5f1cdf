"""Exported models behind the same contract as our own networks: what runs them, and nothing above."""
