"""A server for BERT-family models: requests in any of the usual protocols, ragged batches, answers with the bits that
the model gives alone."""
