"""Files of jobs (artifacts, large results, full logs): in a local folder, in S3, or in the database."""
