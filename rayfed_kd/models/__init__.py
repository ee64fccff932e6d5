"""Classifiers, generators and heads by name. Listing them imports no torch."""

from rayfed_kd.recipe.registry import Registry
from rayfed_kd.recipe.roles import MODEL_BUILDER

CLASSIFIERS = Registry(
    {
        "lenet5": "rayfed_kd.models.small_cnns:lenet5",
        "resnet8": "rayfed_kd.models.resnet:resnet8",
        "bottleneck_resnet": "rayfed_kd.models.resnet:bottleneck_resnet",
        "simple_cnn": "rayfed_kd.models.small_cnns:simple_cnn",
        "cnn2": "rayfed_kd.models.small_cnns:cnn2",
        "m1": "rayfed_kd.models.small_cnns:m1",
        "m2": "rayfed_kd.models.small_cnns:m2",
        "mlp": "rayfed_kd.models.mlp:mlp",
        "dense": "rayfed_kd.models.mlp:dense",
        "short_resnet": "rayfed_kd.models.projected:short_resnet",
        "small_vit": "rayfed_kd.models.attention:small_vit",
        "projected": "rayfed_kd.models.projected:projected",
        "word_bag": "rayfed_kd.models.text:word_bag",
        "fast_text": "rayfed_kd.models.text:fast_text",
        "text_transformer": "rayfed_kd.models.text:text_transformer",
        "row_mlp": "rayfed_kd.models.mlp:row_mlp",
    },
    "torch.nn:Module",
    MODEL_BUILDER,
    "torchvision",
)

GENERATORS = Registry(
    {
        "dafl_image": "rayfed_kd.models.generators:dafl_image",
        "conditional_image": "rayfed_kd.models.generators:conditional_image",
        "dense_image": "rayfed_kd.models.generators:dense_image",
        "fedcg_feature": "rayfed_kd.models.generators:fedcg_feature",
        "dense_feature": "rayfed_kd.models.generators:dense_feature",
    },
    "torch.nn:Module",
    MODEL_BUILDER,
)

HEADS = Registry(
    {
        "linear": "rayfed_kd.models.base:linear",
        "transformer": "rayfed_kd.models.base:transformer",
    },
    "torch.nn:Module",
    MODEL_BUILDER,
)
