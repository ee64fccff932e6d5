"""Data: sources by name, the decoded cache, partitions, batches. Listing sources imports nothing."""

OWN_FILES = (
    "parquet",
    "image_folder",
    "csv",
    "npz",
)  # they read whatever a user has, and nowhere of their own
SOURCES = {
    "digits": "rayfed_kd.data.embedded:digits",
    "synthetic": "rayfed_kd.data.embedded:synthetic",
    "mnist": "rayfed_kd.data.image_sets:mnist",
    "fashion_mnist": "rayfed_kd.data.image_sets:fashion_mnist",
    "emnist_letters": "rayfed_kd.data.image_sets:emnist_letters",
    "svhn": "rayfed_kd.data.image_sets:svhn",
    "cifar10": "rayfed_kd.data.image_sets:cifar10",
    "cifar100": "rayfed_kd.data.image_sets:cifar100",
    "cinic10": "rayfed_kd.data.image_sets:cinic10",
    "parquet": "rayfed_kd.data.parquet:parquet",
    "image_folder": "rayfed_kd.data.own_images:image_folder",
    "csv": "rayfed_kd.data.own_csv:csv",
    "npz": "rayfed_kd.data.own_npz:npz",
    "femnist": "rayfed_kd.data.leaf:femnist",
}
