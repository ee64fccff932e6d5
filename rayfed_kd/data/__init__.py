"""Data: sources by name, the decoded cache, partitions, batches. Listing sources imports nothing."""

from rayfed_kd.recipe.registry import Registry, in_modules
from rayfed_kd.recipe.roles import DATA_SOURCE

# They read whatever a user has, and nowhere of their own.
OWN_FILES = ("arrow", "parquet", "webdataset", "pfllib", "image_folder", "csv", "npz", "text", "tabular")
SOURCES = Registry(
    in_modules(
        "rayfed_kd.data.sources",
        embedded="digits synthetic",
        made_up="synthetic_text synthetic_table",
        image_sets="mnist fashion_mnist emnist_letters svhn cifar10 cifar100 cinic10",
        leaf="femnist",
        own_images="image_folder",
        own_table="tabular csv text",
        own_npz="npz",
        pfllib="pfllib",
        **{"shards.sources": "parquet arrow webdataset"},
    ),
    role=DATA_SOURCE,
)
