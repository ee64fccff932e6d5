"""Data: sources by name, the decoded cache, partitions, batches. Listing sources imports nothing."""

from rayfed_kd.recipe.registry import Registry
from rayfed_kd.recipe.roles import DATA_SOURCE

OWN_FILES = (
    "parquet",
    "image_folder",
    "csv",
    "npz",
    "pfllib",
    "text",
    "tabular",
)  # they read whatever a user has, and nowhere of their own
SOURCES = Registry(
    {
        "digits": "rayfed_kd.data.sources.embedded:digits",
        "synthetic": "rayfed_kd.data.sources.embedded:synthetic",
        "synthetic_text": "rayfed_kd.data.sources.made_up:synthetic_text",
        "synthetic_table": "rayfed_kd.data.sources.made_up:synthetic_table",
        "mnist": "rayfed_kd.data.sources.image_sets:mnist",
        "fashion_mnist": "rayfed_kd.data.sources.image_sets:fashion_mnist",
        "emnist_letters": "rayfed_kd.data.sources.image_sets:emnist_letters",
        "svhn": "rayfed_kd.data.sources.image_sets:svhn",
        "cifar10": "rayfed_kd.data.sources.image_sets:cifar10",
        "cifar100": "rayfed_kd.data.sources.image_sets:cifar100",
        "cinic10": "rayfed_kd.data.sources.image_sets:cinic10",
        "parquet": "rayfed_kd.data.sources.parquet:parquet",
        "image_folder": "rayfed_kd.data.sources.own_images:image_folder",
        "csv": "rayfed_kd.data.sources.own_table:tabular",
        "npz": "rayfed_kd.data.sources.own_npz:npz",
        "pfllib": "rayfed_kd.data.sources.pfllib:pfllib",
        "text": "rayfed_kd.data.sources.own_text:text",
        "tabular": "rayfed_kd.data.sources.own_table:tabular",
        "femnist": "rayfed_kd.data.sources.leaf:femnist",
    },
    role=DATA_SOURCE,
)
