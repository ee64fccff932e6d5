"""Images and labels in shards: Parquet, Arrow and tar files, each with many samples."""
