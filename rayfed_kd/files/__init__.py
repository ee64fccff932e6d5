"""Files and folders on disk: whole files, locked folders, safe names, damage told in one message."""

from rayfed_kd.files.folders import locked_folder, new_folder, no_folder, unwritable_folder, writing
from rayfed_kd.files.names import file_name, path_fault, plain_folder
from rayfed_kd.files.reading import read_json, read_parquet
from rayfed_kd.files.whole import (
    LOCK,
    UNFINISHED_PREFIX,
    atomic_write,
    empty_folder,
    flush_folder,
    folder_written_aside,
    make_folder,
    remove_unfinished,
    tensors_written_aside,
    write_json,
    written_aside,
)

__all__ = [
    "LOCK",
    "UNFINISHED_PREFIX",
    "atomic_write",
    "empty_folder",
    "file_name",
    "flush_folder",
    "folder_written_aside",
    "locked_folder",
    "make_folder",
    "new_folder",
    "no_folder",
    "path_fault",
    "plain_folder",
    "read_json",
    "read_parquet",
    "remove_unfinished",
    "tensors_written_aside",
    "unwritable_folder",
    "write_json",
    "writing",
    "written_aside",
]
