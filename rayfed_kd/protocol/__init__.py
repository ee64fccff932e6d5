"""What a method author implements, and every name that a method file needs beside the toolbox.

Import from this package, not from the files in it. What a method may use is in `rayfed_kd.toolbox`.
"""

from rayfed_kd.data.batches import Batch, PublicBatch
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.models.base import Classifier, last_maps, layer_shape
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.vectors import read_vector, weighted_mean, weighted_sum
from rayfed_kd.protocol.contexts import (
    ClientContext,
    ClientData,
    Context,
    DispatchFacts,
    Log,
    ServerContext,
    ServerFacts,
)
from rayfed_kd.protocol.evaluated import (
    PERSONAL,
    Completing,
    Evaluable,
    Evaluated,
    Personal,
    shared_vectors,
)
from rayfed_kd.protocol.message_codec import Codec, TravellingPart
from rayfed_kd.protocol.messages import (
    KINDS,
    Array,
    Declaration,
    Handle,
    Kind,
    Message,
    Number,
    Package,
    PartRef,
    Replies,
    Reply,
    Simulated,
    to_array,
    to_tensor,
)
from rayfed_kd.protocol.method import (
    RECIPE_MODEL,
    Architecture,
    Cohort,
    Method,
    MethodOptions,
    OneExchange,
    Questions,
    Step,
)
from rayfed_kd.protocol.shown import ClassValues, Distribution, Samples, Shown
from rayfed_kd.protocol.staleness import Lateness, UpdateRule
from rayfed_kd.recipe.schema import LocalRecipe, OptimizerRecipe

__all__ = [
    "KINDS",
    "PERSONAL",
    "RECIPE_MODEL",
    "Architecture",
    "Array",
    "Batch",
    "ClassValues",
    "Classifier",
    "ClientContext",
    "ClientData",
    "Codec",
    "Cohort",
    "Completing",
    "Context",
    "Declaration",
    "DispatchFacts",
    "Distribution",
    "Evaluable",
    "Evaluated",
    "FlatModule",
    "Handle",
    "Kind",
    "Lateness",
    "LocalRecipe",
    "Log",
    "Message",
    "Method",
    "MethodOptions",
    "Number",
    "OneExchange",
    "OptimizerRecipe",
    "Package",
    "PartRef",
    "Personal",
    "PublicBatch",
    "Questions",
    "RecipeError",
    "Replies",
    "Reply",
    "RunError",
    "Samples",
    "ServerContext",
    "ServerFacts",
    "Shown",
    "Simulated",
    "Step",
    "TravellingPart",
    "UpdateRule",
    "last_maps",
    "layer_shape",
    "read_vector",
    "shared_vectors",
    "to_array",
    "to_tensor",
    "weighted_mean",
    "weighted_sum",
]
