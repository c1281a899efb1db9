"""URLs of stores, such as s3:// and gs://: reading inputs and uploading outputs."""
