"""Maps that live in a Milvus server or in milvus-lite (extra `milvus`)."""
