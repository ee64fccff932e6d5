"""Files and folders on disk: whole files, locked folders, safe names, damage told in one message."""
