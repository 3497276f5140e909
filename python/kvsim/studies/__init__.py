"""`kvsim study`: what a model loses with each policy, on many texts (docs/study.md)."""
