"""The version, where the lowest floor can read it."""

VERSION = "0.1.0"
