"""Classifiers, generators and heads by name. Listing them imports no torch."""

from rayfed_kd.recipe.registry import Registry, in_modules
from rayfed_kd.recipe.roles import MODEL_BUILDER

MODELS, MODULE = "rayfed_kd.models", "torch.nn:Module"
CLASSIFIERS = Registry(
    in_modules(
        MODELS,
        small_cnns="lenet5 simple_cnn cnn2 m1 m2",
        resnet="resnet8 bottleneck_resnet",
        mlp="mlp dense row_mlp",
        projected="short_resnet projected",
        attention="small_vit",
        text="word_bag fast_text text_transformer",
    ),
    MODULE,
    MODEL_BUILDER,
    "torchvision",
)
IMAGES, FEATURES = "dafl_image conditional_image dense_image", "fedcg_feature dense_feature"
GENERATORS = Registry(in_modules(MODELS, generators=f"{IMAGES} {FEATURES}"), MODULE, MODEL_BUILDER)
HEADS = Registry(in_modules(MODELS, base="linear transformer"), MODULE, MODEL_BUILDER)
