"""Classifiers, generators and heads by name. Listing them imports no torch."""

CLASSIFIERS = {
    "lenet5": "rayfed_kd.models.lenet:lenet5",
    "resnet8": "rayfed_kd.models.resnet:resnet8",
    "bottleneck_resnet": "rayfed_kd.models.resnet:bottleneck_resnet",
    "simple_cnn": "rayfed_kd.models.simple_cnn:simple_cnn",
    "cnn2": "rayfed_kd.models.cnn2:cnn2",
    "m1": "rayfed_kd.models.layered:m1",
    "m2": "rayfed_kd.models.layered:m2",
    "mlp": "rayfed_kd.models.mlp:mlp",
    "dense": "rayfed_kd.models.mlp:dense",
}

GENERATORS = {
    "dafl_image": "rayfed_kd.models.generators:dafl_image",
    "conditional_image": "rayfed_kd.models.conditional:conditional_image",
    "dense_image": "rayfed_kd.models.conditional:dense_image",
    "fedcg_feature": "rayfed_kd.models.conditional:fedcg_feature",
    "dense_feature": "rayfed_kd.models.conditional:dense_feature",
}

HEADS = {
    "linear": "rayfed_kd.models.base:linear",
    "transformer": "rayfed_kd.models.base:transformer",
}
