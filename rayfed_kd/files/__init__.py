"""Files and folders on disk: whole files, locked folders, safe names, damage told in one message."""

from rayfed_kd.files.folders import file_name as file_name
from rayfed_kd.files.folders import locked_folder as locked_folder
from rayfed_kd.files.folders import new_folder as new_folder
from rayfed_kd.files.folders import no_folder as no_folder
from rayfed_kd.files.folders import path_fault as path_fault
from rayfed_kd.files.folders import plain_folder as plain_folder
from rayfed_kd.files.folders import writing as writing
from rayfed_kd.files.whole import LOCK as LOCK
from rayfed_kd.files.whole import UNFINISHED_PREFIX as UNFINISHED_PREFIX
from rayfed_kd.files.whole import atomic_write as atomic_write
from rayfed_kd.files.whole import empty_folder as empty_folder
from rayfed_kd.files.whole import file_digest as file_digest
from rayfed_kd.files.whole import flush_folder as flush_folder
from rayfed_kd.files.whole import flush_to_disk as flush_to_disk
from rayfed_kd.files.whole import folder_written_aside as folder_written_aside
from rayfed_kd.files.whole import make_folder as make_folder
from rayfed_kd.files.whole import read_json as read_json
from rayfed_kd.files.whole import read_parquet as read_parquet
from rayfed_kd.files.whole import remove_unfinished as remove_unfinished
from rayfed_kd.files.whole import tensors_written_aside as tensors_written_aside
from rayfed_kd.files.whole import write_json as write_json
from rayfed_kd.files.whole import write_parquet as write_parquet
from rayfed_kd.files.whole import written_aside as written_aside
