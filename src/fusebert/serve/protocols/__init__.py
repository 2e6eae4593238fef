"""The protocols, each a table of Calls that translate its messages to the verbs of `calls` and back."""
