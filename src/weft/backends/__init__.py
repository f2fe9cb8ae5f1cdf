"""Engines that run exported models in place of a torch network."""
