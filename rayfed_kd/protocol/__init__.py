"""What a method author implements, and every name that a method file needs beside the toolbox.

Import from this package, not from the files in it. What a method may use is in `rayfed_kd.toolbox`.
"""

from rayfed_kd.data.batches import Batch, Drawn, PixelScale, PublicBatch
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.models.base import Classifier, last_maps, layer_shape
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.vectors import read_vector, weighted_mean, weighted_sum
from rayfed_kd.protocol.context_facts import ClientData, DispatchFacts, Log, ServerFacts
from rayfed_kd.protocol.contexts import ClientContext, Context, ServerContext
from rayfed_kd.protocol.declaration import KINDS, Answers, Averaged, Declaration, Kind, Simulated, Unaligned
from rayfed_kd.protocol.evaluated import (
    PERSONAL,
    Completing,
    Evaluable,
    Evaluated,
    Personal,
    shared_vectors,
)
from rayfed_kd.protocol.mean_rules import Lateness, MeanRule
from rayfed_kd.protocol.message_codec import Codec, CodecError, Coded, TravellingPart
from rayfed_kd.protocol.messages import (
    Array,
    Handle,
    Message,
    Number,
    Package,
    PartRef,
    Replies,
    Reply,
    to_array,
    to_tensor,
)
from rayfed_kd.protocol.method import (
    RECIPE_MODEL,
    Architecture,
    Cohort,
    Control,
    Method,
    MethodOptions,
    OneExchange,
    Questions,
    Step,
)
from rayfed_kd.protocol.shown import ClassValues, Distribution, Samples, Shown
from rayfed_kd.protocol.wrapping import InnerMethod, Wrapping, WrappingOptions, WrappingState
from rayfed_kd.recipe.sections.local_training import LocalRecipe, OptimizerRecipe
from rayfed_kd.recipe.sections.torch_optimizers import OptimizerName

__all__ = [
    "KINDS",
    "PERSONAL",
    "RECIPE_MODEL",
    "Answers",
    "Architecture",
    "Array",
    "Averaged",
    "Batch",
    "ClassValues",
    "Classifier",
    "ClientContext",
    "ClientData",
    "Codec",
    "CodecError",
    "Coded",
    "Cohort",
    "Completing",
    "Context",
    "Control",
    "Declaration",
    "DispatchFacts",
    "Distribution",
    "Drawn",
    "Evaluable",
    "Evaluated",
    "FlatModule",
    "Handle",
    "InnerMethod",
    "Kind",
    "Lateness",
    "LocalRecipe",
    "Log",
    "MeanRule",
    "Message",
    "Method",
    "MethodOptions",
    "Number",
    "OneExchange",
    "OptimizerName",
    "OptimizerRecipe",
    "Package",
    "PartRef",
    "Personal",
    "PixelScale",
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
    "Unaligned",
    "Wrapping",
    "WrappingOptions",
    "WrappingState",
    "last_maps",
    "layer_shape",
    "read_vector",
    "shared_vectors",
    "to_array",
    "to_tensor",
    "weighted_mean",
    "weighted_sum",
]
