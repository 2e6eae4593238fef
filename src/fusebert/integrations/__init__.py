"""fusebert in the interfaces of other libraries, one file for each: nothing of them is imported before its file is.

docs/integrations.md shows them in use. Those that run models themselves have front doors beside this folder: torch,
sentence_transformers, sklearn."""
